"""Requests that no honest client sends, as bytes for a socket: bodies, heads, targets, framing.

Each is answered with a problem and stores nothing.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

HOST: Final = b"127.0.0.1"
JOB: Final = b'{"payload":{}}'


@dataclass(frozen=True, slots=True)
class Hostile:
    """One request.

    Attributes:
        statuses: those that are right; 400 where the server itself finds it is no HTTP.
    """

    name: str
    data: bytes
    statuses: frozenset[int] = frozenset(range(400, 500))


def request(
    target: bytes = b"/enqueue",
    body: bytes = JOB,
    *headers: bytes,
    method: bytes = b"POST",
    content_type: bytes = b"application/json",
    host: bytes = HOST,
    length: bytes | None = None,
) -> bytes:
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: " + host, b"Connection: close"]
    if content_type:
        lines.append(b"Content-Type: " + content_type)
    if body or method == b"POST":
        lines.append(b"Content-Length: " + (length or str(len(body)).encode()))
    return b"\r\n".join([*lines, *headers]) + b"\r\n\r\n" + body


def hostile_requests() -> list[Hostile]:
    """All of them."""
    return [
        *_bodies(),
        *_fields(),
        *_types(),
        *_form_types(),
        *_heads(),
        *_targets(),
        *_methods(),
        *_framing(),
    ]


def _bodies() -> Iterator[Hostile]:
    broken: dict[str, bytes] = {
        "empty": b"",
        "one brace": b"{",
        "NUL bytes": b"\0" * 100,
        "random bytes": bytes(range(256)),
        "UTF-16": '{"payload":{}}'.encode("utf-16")[:-1],
        "UTF-7": b"+AHs-",
        "overlong UTF-8": b'{"payload":{"a":"\xc0\xaf"}}',
        "cut in a character": b'{"payload":{"a":"\xe2\x82"}}',
        "CESU surrogates": b'{"payload":{"a":"\xed\xa0\x80"}}',
        "gzip": b"\x1f\x8b\x08\x00" + b"\0" * 50,
        "zip": b"PK\x03\x04" + b"\0" * 50,
        "pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93.",
        "PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
        "ELF": b"\x7fELF\x02\x01\x01" + b"\0" * 9,
        "XML entity": b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
        "XML bomb": b'<!DOCTYPE a [<!ENTITY b "' + b"&c;" * 1_000 + b'">]><a>&b;</a>',
        "YAML object": b"!!python/object/apply:os.system ['true']",
        "JavaScript": b"{payload:{}}",
        "single quotes": b"{'payload':{}}",
        "trailing comma": b'{"payload":{},}',
        "comment": b'{"payload":{}/**/}',
        "text after": b'{"payload":{}}{"payload":{}}',
        "text before": b'x{"payload":{}}',
        "callback": b'f({"payload":{}})',
        "guard prefix": b')]}\',\n{"payload":{}}',
        "control character": b'{"payload":{"a":"\x01"}}',
        "raw newline": b'{"payload":{"a":"\n"}}',
        "bad escape": b'{"payload":{"a":"\\x41"}}',
        "half an escape": b'{"payload":{"a":"\\u12"}}',
        "NUL escape": b'{"payload":{"a":"\\u0000"}}',
        "NUL in a key": b'{"payload":{"\\u0000":1}}',
        "lone surrogate": b'{"payload":{"a":"\\udc00"}}',
        "swapped surrogates": b'{"payload":{"a":"\\udc00\\ud800"}}',
        "NaN": b'{"payload":{"a":NaN}}',
        "Infinity": b'{"payload":{"a":-Infinity}}',
        "1e999": b'{"payload":{"a":1e999}}',
        "leading zeros": b'{"payload":{"a":0123}}',
        "hexadecimal": b'{"payload":{"a":0x10}}',
        "plus sign": b'{"payload":{"a":+1}}',
        "huge integer": b'{"payload":{"a":' + b"9" * 5_000 + b"}}",
        "huge exponent": b'{"payload":{"a":1e' + b"9" * 5_000 + b"}}",
        "deep objects": b'{"payload":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001,
        "deep arrays": b'{"payload":{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}}",
        "open brackets": b"[" * 60_000,
        "open braces": b'{"a":' * 20_000,
        "open brackets, large": b"[" * 200_000,
        "102 levels": b'{"payload":' + b'{"a":' * 101 + b"1" + b"}" * 102,
        "null": b"null",
        "true": b"true",
        "a number": b"1",
        "a string": b'"{}"',
        "an array of jobs": b"[" + JOB + b"]",
        "form fields": b"payload=%7B%7D&pipeline=demo-echo",
        "multipart": b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n{}\r\n--x--\r\n',
        "BOM": b"\xef\xbb\xbf[]",
        "no payload": b'{"pipeline":"demo-echo"}',
        "payload null": b'{"payload":null}',
        "payload a string": b'{"payload":"x"}',
        "payload an array": b'{"payload":[1]}',
        "payload a number": b'{"payload":1}',
        "prototype": b'{"payload":{},"__proto__":{"admin":true}}',
        "class": b'{"payload":{},"__class__":"os.system"}',
        "metadata too large": b'{"payload":{},"metadata":{"a":"' + b"x" * 70_000 + b'"}}',
    }
    for name, body in broken.items():
        yield Hostile(f"body: {name}", request(body=body), frozenset({400, 413, 422}))


def _fields() -> Iterator[Hostile]:
    wrong: dict[str, list[object]] = {
        "pipeline": [
            "os:system",
            "antigravity:x",
            "app.pipelines.demo:Echo",
            "../../etc/passwd",
            "demo-echo\0",
            "demo-echo;drop table haulage.jobs",
            "demo-echo' or '1'='1",
            "${jndi:ldap://127.0.0.1/a}",
            "{{7*7}}",
            "x" * 256,
            "",
            1,
            ["demo-echo"],
            {"$ne": None},
        ],
        "queue": ["", "x" * 256, "a\0b", 1, None, {"$gt": ""}],
        "priority": [32_768, -32_769, 1.5, "high", 10**100, None, [], "1; select"],
        "run_at": [
            "soon",
            "2030-01-01T00:00:00",
            "0000-00-00",
            -(10**20),
            "9999-12-31T23:59:59-23:59",
        ],
        "delay_seconds": [-1, 1e300, "x", None, 31_536_001],
        "max_attempts": [0, -1, 101, 1.5, "x"],
        "timeout_seconds": [0, -1, 1e300, "x"],
        "start_timeout_seconds": [0, 1e300],
        "stall_seconds": [0, 0.5],
        "memory_limit_bytes": [0, 1, 2**70, "1GiB"],
        "tags": ["x", [""], ["x" * 101], ["x"] * 51, ["\0"], [1], [None], {"a": 1}],
        "metadata": ["x", [], 1, None, {"a": "\0"}, {"\ud800": 1}],
        "unknown": [1],
    }
    for field, values in wrong.items():
        for number, value in enumerate(values):
            body = json.dumps({"payload": {}, field: value}).encode()
            name = f"field: {field} {number} {str(value)[:30]!r}"
            yield Hostile(name, request(body=body), frozenset({400, 422}))


def _types() -> Iterator[Hostile]:
    for content_type in (
        b"",
        b"text/plain",
        b"text/html",
        b"application/xml",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data",
        b"multipart/form-data; boundary=" + b"x" * 5_000,
        b"application/x-ndjson",
        b"application/x-python-pickle",
        b"application/jsonp",
        b"json",
        b"application/json\x0bx",
        b"*/*",
        b"/",
    ):
        name = f"content type: {content_type[:40]!r} of {len(content_type)}"
        yield Hostile(name, request(content_type=content_type), frozenset({400, 415}))


def _form_types() -> Iterator[Hostile]:
    body = b'--a\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--a--\r\n'
    for parameters in (
        b"",
        b"boundary",
        b"boundary=",
        b"boundary*=a; boundary*0=b",
        b"boundary*0=a; boundary*=b",
        b"boundary*=undefined''a",
        b"boundary*=utf-8''a",
        b"boundary*0=a; boundary*1=b",
        b"boundary*" + b"9" * 5_000 + b"=a",
        b"boundary=a; boundary=b",
        b"boundary=a; BOUNDARY=b",
        b'boundary="a',
        b'boundary="a"b',
        b'boundary="a\\',
        b'boundary="a" x*0=b; x*=c',
        b"=a",
        b"boundary=\xff\xfe",
        b'boundary="' + b"a" * 71 + b'"',
        b"boundary=a b",
        b";" * 5_000,
        b'boundary=a; x="' + b'\\"' * 3_000,
    ):
        kind = b"multipart/form-data; " + parameters
        name = f"form type: {parameters[:40]!r} of {len(parameters)}"
        data = request(b"/datasets", body, content_type=kind)
        yield Hostile(name, data, frozenset({400, 415}))


def _heads() -> Iterator[Hostile]:
    many = [b"X-%d: y" % n for n in range(150)]
    heads: dict[str, tuple[bytes, ...]] = {
        "150 headers": tuple(many),
        "the same header 150 times": (b"X-A: y",) * 150,
        "20 kB of one header": (b"X-A: " + b"y" * 20_000,),
        "70 kB of one header": (b"X-A: " + b"y" * 70_000,),
        "1 MB of headers": (b"X-A: " + b"y" * 1_000_000,),
        "a header without a name": (b": y",),
        "a header without a colon": (b"nonsense",),
        "a space before the colon": (b"X-A : y",),
        "NUL in a name": (b"X\0A: y",),
        "NUL in a value": (b"X-A: a\0b",),
        "a lone carriage return": (b"X-A: a\rb",),
        "a folded line first": (b" folded",),
        "not ASCII in a name": ("X-Ä: y".encode(),),
        "two hosts": (b"Host: evil.example",),
        "two lengths": (b"Content-Length: 5",),
        "a negative length": (b"Content-Length: -1",),
        "length and chunks, unknown coding": (b"Transfer-Encoding: gzip, chunked",),
        "an unknown coding": (b"Transfer-Encoding: identity, x",),
        "cookies of 20 kB": (b"Cookie: " + b"a=b; " * 4_000,),
        "another key": (b"Authorization: Bearer hlg_" + b"x" * 43,),
        "a key of 9 kB": (b"Authorization: Bearer hlg_" + b"x" * 9_000,),
        "another origin": (b"Origin: https://evil.example",),
        "no origin": (b"Origin: null",),
        "an origin that is no URL": (b"Origin: http://[",),
    }
    for name, headers in heads.items():
        yield Hostile(f"head: {name}", request(b"/enqueue", JOB, *headers))
    for host in (
        b"evil.example",
        b"",
        b"127.0.0.1.evil.example",
        b"[",
        b"a b",
        b"\xff",
        b"x" * 5_000,
    ):
        yield Hostile(f"host: {host[:30]!r}", request(host=host), frozenset({400, 421}))


def _targets() -> Iterator[Hostile]:
    for target in (
        b"/../../etc/passwd",
        b"/%2e%2e/%2e%2e/etc/passwd",
        b"//enqueue",
        b"/enqueue%00",
        b"/enqueue/..;/x",
        b"/jobs/%00",
        b"/jobs/%ff%fe",
        b"/jobs/%0d%0aX-A:%20b",
        b"/jobs/..%2f..%2fenqueue",
        b"/jobs/' or 1=1 --".replace(b" ", b"%20"),
        b"/jobs/0199c0de-0000-7000-8000-00000000000g",
        b"/jobs/0199c0de-0000-7000-8000-000000000001",
        b"/jobs/{0199c0de-0000-7000-8000-000000000001}",
        b"/jobs/" + b"1" * 5_000,
        b"/jobs/" + b"x" * 9_000,
        b"/jobs/" + b"%41" * 3_000,
        b"/jobs?" + b"a=b&" * 3_000,
        b"/" + b"a/" * 4_000,
        b"/jobs/" + "ä".encode(),
        b"/jobs/x y",
        b"/jobs/%",
        b"/jobs/%u0041",
        b"/static/../app/config.py",
        b"/.env",
        b"/.git/config",
        b"/wp-login.php",
        b"/docs/../../x",
        b"http://evil.example/jobs/x",
        b"evil.example:443",
        b"*",
        b"?",
        b"jobs/x",
    ):
        data = request(target, b"", method=b"GET", content_type=b"")
        yield Hostile(f"target: {target[:50]!r} of {len(target)}", data)


def _methods() -> Iterator[Hostile]:
    for method in (b"GET", b"PUT", b"DELETE", b"PATCH", b"TRACE", b"CONNECT", b"PROPFIND", b"HEAD"):
        yield Hostile(f"method: {method.decode()}", request(method=method))
    for method in (b"post", b"P" * 5_000, b"PO ST", b"PO\0ST", b"\xff\xfe"):
        yield Hostile(f"method: {method[:10]!r}", request(method=method))


def _framing() -> Iterator[Hostile]:
    chunked = b"POST /enqueue HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    chunked += b"Transfer-Encoding: chunked\r\n\r\n"
    raw: dict[str, bytes] = {
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50 + b"\r\n\r\n",
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "HTTP/9.9": b"GET /jobs/x HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
        "HTTP/0.9": b"GET /livez\r\n\r\n",
        "no host": b"GET /jobs/x HTTP/1.1\r\n\r\n",
        "HTTP/1.0 without a host": b"GET /jobs/x HTTP/1.0\r\n\r\n",
        "SSH": b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        "SMTP": b"EHLO evil.example\r\n\r\n",
        "redis": b"*1\r\n$8\r\nFLUSHALL\r\n\r\n",
        "PostgreSQL": b"\0\0\0\x08\x04\xd2\x16\x2f\r\n\r\n",
        "binary": bytes(range(1, 256)) + b"\r\n\r\n",
        "a chunk of no length": chunked + b"ZZ\r\n{}\r\n0\r\n\r\n",
        "a chunk of endless length": chunked + b"f" * 30 + b"\r\n{}\r\n0\r\n\r\n",
        "a chunk longer than it says": chunked + b"2\r\n{}{}\r\n0\r\n\r\n",
        "a negative chunk": chunked + b"-2\r\n{}\r\n0\r\n\r\n",
        "70 kB of chunk extensions": chunked + b"2;" + b"a" * 70_000 + b"\r\n{}\r\n0\r\n\r\n",
        "length beyond all bounds": request(length=b"99999999999"),
        "length of 30 digits": request(length=b"9" * 30),
        "length in hexadecimal": request(length=b"0x10"),
        "length with a sign": request(length=b"+14"),
        "length of letters": request(length=b"ten"),
        "smuggled second request": request(length=b"0") + request(b"/jobs/x"),
        "upgrade to a socket": request(
            b"/jobs/x",
            b"",
            b"Upgrade: websocket",
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            b"Sec-WebSocket-Version: 13",
            method=b"GET",
        ),
        "upgrade to HTTP/2": request(b"/jobs/x", b"", b"Upgrade: h2c", method=b"GET"),
        "an expectation": request(b"/jobs/x", b"", b"Expect: 200-maybe", method=b"GET"),
        "a range": request(b"/jobs/x", b"", b"Range: bytes=" + b"0-1," * 500, method=b"GET"),
    }
    for name, data in raw.items():
        yield Hostile(f"framing: {name}", data)
