"""Where webhooks may go: forms of private addresses, names that lead to them, and exceptions."""

import asyncio
import socket
import ssl
import subprocess
import threading
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
from support.hook_server import hook_server

from app.domain.webhooks import DueDelivery, new_secret
from app.webhooks import sending
from app.webhooks.addresses import AddressRules, BlockedAddressError
from app.webhooks.sending import HTTPSender, PinnedTransport

PRIVATE = [
    "127.0.0.1",
    "127.8.9.1",
    "0.0.0.0",  # noqa: S104  looked at, not listened on
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.0.8",
    "198.18.0.1",
    "203.0.113.9",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "fc00::1",
    "fd12:3456:789a::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_of_the_public_internet_is_refused(address: str) -> None:
    with pytest.raises(BlockedAddressError):
        AddressRules().choose("hooks.example", [address])


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_taken(address: str) -> None:
    assert ip_address(AddressRules().choose("hooks.example", [address])) == ip_address(address)


def test_of_several_addresses_an_allowed_one_is_taken() -> None:
    assert AddressRules().choose("hooks.example", ["10.0.0.1", "8.8.8.8"]) == "8.8.8.8"
    with pytest.raises(BlockedAddressError):
        AddressRules().choose("hooks.example", [])


def test_exceptions_are_hosts_addresses_and_networks() -> None:
    rules = AddressRules.parse(
        ["Hooks.Internal", "10.1.0.0/16", "192.168.7.7", "fd00::/8", "[::1]"]
    )

    assert rules.choose("hooks.internal.", ["127.0.0.1"]) == "127.0.0.1"
    for address in ("10.1.2.3", "192.168.7.7", "fd12::1", "::1", "::ffff:10.1.2.3"):
        assert ip_address(rules.choose("other.example", [address])) == ip_address(address)
    for address in ("10.2.0.1", "192.168.7.8", "127.0.0.1"):
        with pytest.raises(BlockedAddressError):
            rules.choose("other.example", [address])
    for wrong in ("10.1.0.0/99", "*.internal", "a/b", "10.1.2.3/8", ""):
        with pytest.raises(ValueError):  # noqa: PT011  whatever it says
            AddressRules.parse([wrong])


@pytest.mark.parametrize(
    "url",
    [
        "ftp://hooks.example/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "hooks.example",
        "https://",
        "https:///path",
        "https://user:pw@hooks.example/",
        "https://hooks.example/#x",
        "https://hooks.example:0/",
        "https://hooks.example:99999/",
        "https://hooks.example\\@127.0.0.1/",
        "https://hooks.example/ x",
        "https://hooks.example/\r\nHost: x",
        "https://höoks.example/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:7f00:1]/",
        "http://169.254.169.254/latest/meta-data/",
        "https://hooks.example/" + "x" * 2_000,
    ],
)
def test_what_can_be_no_endpoint_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  whatever it says
        AddressRules().check_url(url)


def delivery(url: str) -> DueDelivery:
    return DueDelivery(
        "1", "2", url, [new_secret()], "3", "demo-echo", "job.completed", 1, datetime.now(UTC)
    )


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "0x7f.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "0",
        "LOCALHOST.",
    ],
)
async def test_no_way_of_writing_loopback_reaches_it(host: str) -> None:
    async with hook_server() as hooks:
        sender = HTTPSender(PinnedTransport(AddressRules()))
        answer = await sender.send(delivery(f"http://{host}:{hooks.port}/"))
        await sender.close()

        assert answer.status_code is None
        assert answer.error
        assert hooks.got == []
        reached = HTTPSender(PinnedTransport(AddressRules.parse(["127.0.0.0/8"])))
        assert (await reached.send(delivery(hooks.url))).status_code == 204
        await reached.close()


async def test_a_name_that_changes_its_meaning_is_connected_to_as_it_was_looked_at() -> None:
    """DNS rebinding: the second answer leads inside."""
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["10.0.0.1"] if len(asked) > 1 else ["127.0.0.1"]

    async with hook_server() as hooks:
        transport = PinnedTransport(AddressRules.parse(["127.0.0.1"]), resolving=rebinding)
        sender = HTTPSender(transport)
        answer = await sender.send(delivery(f"http://hooks.example:{hooks.port}/a?b=c"))

        assert answer.status_code == 204
        assert asked == ["hooks.example"]
        assert hooks.got[0].line == "POST /a?b=c HTTP/1.1"
        assert hooks.got[0].headers["host"] == f"hooks.example:{hooks.port}"
        again = await sender.send(delivery(f"http://hooks.example:{hooks.port}/"))
        assert again.status_code is None
        assert len(hooks.got) == 1
        await sender.close()


async def test_tls_is_held_to_the_name_and_not_to_the_address(tmp_path: Path) -> None:
    made = subprocess.run(  # noqa: ASYNC221
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")),
            *("-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example"),
        ],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no openssl here")
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    ours = ssl.create_default_context(cafile=tmp_path / "cert")

    async def here(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=theirs)
    port = server.sockets[0].getsockname()[1]
    transport = PinnedTransport(AddressRules.parse(["127.0.0.1"]), resolving=here, tls=ours)
    sender = HTTPSender(transport)

    assert (await sender.send(delivery(f"https://hooks.example:{port}/"))).status_code == 200
    other = await sender.send(delivery(f"https://other.example:{port}/"))
    assert other.status_code is None
    assert "certificate" in (other.error or "").lower()
    await sender.close()
    server.close()


async def test_redirects_are_not_followed_and_proxies_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hook_server() as hooks, hook_server() as elsewhere:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{elsewhere.port}")
        hooks.script.append(
            f"HTTP/1.1 302 Found\r\nLocation: {elsewhere.url}\r\nContent-Length: 0\r\n\r\n".encode()
        )
        sender = HTTPSender(PinnedTransport(AddressRules.parse(["127.0.0.1"])))
        answer = await sender.send(delivery(hooks.url))
        await sender.close()

        assert answer.status_code == 302
        assert len(hooks.got) == 1
        assert elsewhere.got == []


async def test_a_name_that_is_none_is_a_failed_try() -> None:
    sender = HTTPSender(PinnedTransport(AddressRules()))
    answer = await sender.send(delivery("https://no-such-host.invalid/"))
    await sender.close()
    assert answer.error is not None
    assert answer.status_code is None


async def test_a_name_server_that_is_silent_costs_a_try_and_no_thread_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_answer = threading.Event()

    def silent(*_: object, **__: object) -> list[object]:
        may_answer.wait(20.0)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    monkeypatch.setattr(sending, "TRY_SECONDS", 0.3)
    sender = HTTPSender(PinnedTransport(AddressRules()))
    answers = await asyncio.gather(
        *(sender.send(delivery("https://x.example/")) for _ in range(20))
    )

    assert {answer.error for answer in answers} == {"no answer within 0 s"}
    assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), 5.0) == 1
    await sender.close()
    may_answer.set()
    for thread in threading.enumerate():
        if thread.name == "haulage-resolve":
            assert thread.daemon
            thread.join(5.0)


async def test_a_name_of_another_script_is_resolved_as_it_is_sent() -> None:
    """Other rules would make another name of it, which somebody else may have."""
    asked: list[str] = []

    async def here(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    name = "xn--strae-oqa.de"
    async with hook_server() as hooks:
        sender = HTTPSender(PinnedTransport(AddressRules.parse([name]), resolving=here))
        answer = await sender.send(delivery(f"http://{name}:{hooks.port}/"))
        await sender.close()

        assert answer.status_code == 204
        assert asked == [name]
        assert hooks.got[0].headers["host"] == f"{name}:{hooks.port}"
