"""Settings of keys, origins and webhooks: what is refused, and that no secret is shown."""

import pytest

from app.config import load_settings
from app.domain.errors import ConfigurationError
from app.domain.keys import Scope, digest, is_well_formed, new_key
from app.domain.webhooks import SECRET_PREFIX, new_secret


def test_a_key_of_the_settings_has_the_form_of_a_key_and_is_not_shown() -> None:
    key = new_key()
    settings = load_settings({"admin_key": key, "api_key": "anything"})
    assert settings.admin_key is not None
    assert settings.admin_key.get_secret_value() == key
    assert key not in repr(settings) + settings.model_dump_json()
    for bad in ("s3cret", "hlg_short", f"{key}x", key.replace("hlg_", "abc_"), ""):
        if bad:
            with pytest.raises(ConfigurationError) as caught:
                load_settings({"admin_key": bad})
            assert bad not in str(caught.value)
            assert "HAULAGE_ADMIN_KEY" in str(caught.value)


def test_a_bound_that_is_no_number_is_shown() -> None:
    with pytest.raises(ConfigurationError, match="many"):
        load_settings({"max_pending_jobs_per_key": "many"})


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "null",
        "app.example",
        "file://",
        "https://app.example/",
        "https://app.example/x",
        "https://App.example",
        "https://u:p@app.example",
        "https://*.app.example/",
        "https://app.example:443",
        "http://app.example:80",
    ],
)
def test_an_origin_is_written_as_a_browser_writes_it(origin: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings({"cors_origins": f"https://fine.example,{origin}"})
    assert caught.value.setting == "HAULAGE_CORS_ORIGINS"


@pytest.mark.parametrize(
    "host", ["app.example:8443", "http://x.y", "x.y.", "x/y", "u@x", "[", "::1:8000]", "ä.example"]
)
def test_a_host_that_could_never_match_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings({"allowed_hosts": f"fine.example,{host}"})
    assert caught.value.setting == "HAULAGE_ALLOWED_HOSTS"
    assert "write the name alone" in caught.value.remedy


def test_hosts_are_compared_as_they_are_sent() -> None:
    settings = load_settings({"allowed_hosts": "App.Example,10.0.0.7,[2001:db8::1]"})
    assert settings.allowed_hosts == ["app.example", "10.0.0.7", "2001:db8::1"]


def test_broken_pipelines_are_not_printed() -> None:
    text = '{"x": {"target": "a:B", "arguments": {"api_key": "sk-secret-123"}}, '
    with pytest.raises(ConfigurationError) as caught:
        load_settings({"pipelines": text})
    assert "secret" not in str(caught.value)
    assert "not JSON" in caught.value.remedy


def test_origins_and_hosts_are_lists() -> None:
    settings = load_settings(
        {"cors_origins": "https://a.example, http://localhost:3000", "allowed_hosts": "a,b"}
    )
    assert settings.cors_origins == ["https://a.example", "http://localhost:3000"]
    assert settings.allowed_hosts == ["a", "b"]


def test_keys_and_secrets_are_random_and_of_one_form() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(is_well_formed(key) and len(key) == 47 for key in keys)
    assert len({digest(key) for key in keys}) == 100
    assert not is_well_formed(f"{new_key()}\n")
    assert all(new_secret().startswith(SECRET_PREFIX) for _ in range(3))


def test_scopes_include_those_before_them() -> None:
    order = [Scope.READ, Scope.SUBMIT, Scope.ADMIN]
    for mine, scope in enumerate(order):
        assert [scope.includes(other) for other in order] == [mine >= n for n in range(3)]
