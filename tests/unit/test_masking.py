"""Secrets in log lines and tracebacks: masked, and the rest left readable."""

import io
import json
import logging
import time
from collections.abc import Iterator

import pytest

from app.domain.json_values import describe_exception
from app.domain.keys import new_key
from app.domain.masking import Mask, mask_secrets, secret_values
from app.telemetry import configure_logging, default_telemetry

KEY = new_key()
SECRETS = {
    f"authorization: Bearer {KEY}": "authorization: Bearer ***",
    "Authorization: Basic dXNlcjpwYXNz": "Authorization: Basic ***",
    "bearer eyJhbGciOiJIUzI1NiJ9.e30.abc-_~+/=": "bearer ***",
    f"no key {KEY}, sorry": "no key hlg_***, sorry",
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw": "whsec_***",
    "postgresql://user:s3cret@host:5432/db": "postgresql://user:***@host:5432/db",
    "postgresql://user:p@ss@host/db": "postgresql://user:***@host/db",
    "postgresql+asyncpg://:s3cret@/db?host=/run": "postgresql+asyncpg://:***@/db?host=/run",
    "https://u:s3cret@hooks.example/x": "https://u:***@hooks.example/x",
    "dsn='postgres://u:s3cret@h/d' failed": "dsn='postgres://u:***@h/d' failed",
    "host=h password=s3cret dbname=d": "host=h password=*** dbname=d",
    "postgresql://h/d?sslpassword=s3cret&user=u": "postgresql://h/d?sslpassword=***&user=u",
    '{"api_key": "s3cret", "n": 1}': '{"api_key": "***", "n": 1}',
    "connect(password='s3cret', port=1)": "connect(password='***', port=1)",
    '{"password": "x y, z", "n": 1}': '{"password": "***", "n": 1}',
    r'{"password": "a\"bcd", "n": 1}': '{"password": "***", "n": 1}',
    "password='never closed": "password='***",
    "Server=h;Pwd=s3cret": "Server=h;Pwd=***",
    "incorrect key sk-proj-abcDEF0123456789_x provided": "incorrect key sk-*** provided",
}
PLAIN = [
    "GET http://127.0.0.1:8000/jobs/1?a=b@c",
    "job.claimed job=0199c0de-0000-7000-8000-000000000001 attempt=1",
    "postgresql://user@host:5432/db",
    "hlg_ is the prefix of keys",
    "mail to someone@example.org at 10:30",
    "the bearer of bad news",
]


@pytest.mark.parametrize(("text", "masked"), SECRETS.items())
def test_a_secret_is_masked(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask_secrets(text) == text


@pytest.mark.parametrize(
    "text",
    ["a.b" * 10_000, "password " * 5_000, "bearer " * 5_000, "://a" * 10_000, "token" * 8_000],
)
def test_a_text_that_is_made_to_take_long_takes_no_longer(text: str) -> None:
    began = time.process_time()
    mask_secrets(f"{text} x://")
    # A few milliseconds; tens of seconds where every word is read to the end of the text.
    assert time.process_time() - began < 1.0


def test_a_value_that_is_known_is_masked_wherever_it_stands() -> None:
    mask = Mask(["correct-horse", "correct-horse-battery", "short", ""])

    assert mask("a correct-horse-battery, correct-horse; short") == "a ***, ***; short"


def test_secrets_of_an_environment_go_by_their_names_or_by_who_names_them() -> None:
    environment = {
        "OPENAI_API_KEY": "one",
        "HAULAGE_ADMIN_KEY": " two ",
        "DB_PASSWORD": "three",
        "token": "four",
        "PGPASSWORD": "five",
        "SMTP_PASSWD": "six",
        "APIKEY": "seven",
        "MODEL_ACCESS": "eight",
        "PWD": "/srv",
        "KEYBOARD": "us",
        "MONKEY": "george",
    }
    arguments = json.dumps({"defaults": {"llm": {"api_key_env": "MODEL_ACCESS", "model": "PWD"}}})

    by_name = ["one", "two", "three", "four", "five", "six", "seven"]
    assert secret_values(environment) == by_name
    assert secret_values(environment, arguments) == [*by_name, "eight"]


@pytest.mark.parametrize("secret", ["postgresql://haulage:" + "s3cret" * 5 + "@db", "s3cret" * 5])
@pytest.mark.parametrize("cut", range(3_950, 4_010, 3))
def test_no_part_of_a_secret_is_left_where_a_message_is_cut(cut: int, secret: str) -> None:
    error = ValueError("x" * cut + " " + secret)

    told = describe_exception(error, Mask(["s3cret" * 5]))

    assert "s3cret" not in told.message
    assert told.traceback is not None
    assert "s3cret" not in told.traceback


@pytest.fixture(params=["console", "json"])
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is written to stderr from here on."""
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure_logging(request.param)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)


def test_log_lines_and_tracebacks_of_ours_hold_no_secret(log: io.StringIO) -> None:
    dsn = "postgresql://haulage:s3cret@db.internal:5432/haulage"
    try:
        raise OSError(f"cannot connect to {dsn}")  # noqa: TRY301  as a driver may say it
    except OSError:
        logging.getLogger("haulage").exception("asking %s with Bearer %s failed", dsn, KEY)
    default_telemetry().emit("loop.failed", loop="x", error=f"{dsn} {KEY}", failures=1)

    text = log.getvalue()
    assert "s3cret" not in text
    assert KEY not in text
    assert KEY[4:] not in text
    assert text.count("haulage:***@db.internal") >= 3
    assert "Traceback" in text
    if text.startswith("{"):
        assert [json.loads(line)["level"] for line in text.splitlines()] == ["error", "error"]
