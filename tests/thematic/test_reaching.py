"""Which servers a payload may name, and that it never gets at a key or past a bound."""

from typing import Any

import pytest

from app.pipelines.thematic.parameters import ParameterError, Parameters, parse_request

OWN = {"base_url": "https://llm.example/v1", "model": "large", "api_key_env": "THE_KEY"}
ORIGINS = ["http://127.0.0.1:8080", "https://other.example/", "https://third.example/openai/v2"]


def parsed(payload: dict[str, Any], **operator: Any) -> Parameters:
    given = {"llm": OWN, "llm_origins": ORIGINS, **operator}
    return parse_request({"answers": [], **payload}, **given).parameters


def refused(payload: dict[str, Any], **operator: Any) -> ParameterError:
    with pytest.raises(ParameterError) as caught:
        parsed(payload, **operator)
    return caught.value


def test_the_operators_model_is_used_where_the_payload_says_nothing() -> None:
    llm = parsed({}).llm
    assert llm is not None
    assert (llm.base_url, llm.model, llm.api_key_env) == tuple(OWN.values())


def test_keywords_mode_has_no_model() -> None:
    assert parsed({"mode": "keywords"}).llm is None


@pytest.mark.parametrize(
    "url",
    [
        "https://llm.example/v1",
        "https://LLM.example:443/v1/",
        "http://127.0.0.1:8080/v1",
        "https://other.example/v1/tenant-7",
        "https://third.example/openai/v2",
    ],
)
def test_a_payload_may_name_the_servers_that_the_operator_allows(url: str) -> None:
    llm = parsed({"llm": {"base_url": url, "model": "mine"}}).llm
    assert llm is not None
    assert (llm.base_url, llm.model, llm.api_key_env) == (url, "mine", "THE_KEY")


@pytest.mark.parametrize("part", ["llm", "embedding"])
@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/v1",
        "http://llm.example/v1",
        "https://llm.example:8443/v1",
        "https://llm.example.evil.example/v1",
        "https://llm.example@evil.example/v1",
        "https://user:secret@llm.example/v1",
        "https://llm.example\\@evil.example/v1",
        "https://llm.example/v1?to=evil",
        "https://llm.example/v1?",
        "https://llm.example/v1#x",
        "https://llm.example/v1#",
        "https://llm.example/api/pull#",
        "https://llm.example/api/pull?",
        "https://llm.example",
        "https://llm.example/v1/more",
        "https://llm.example/V1",
        "https://llm.example/v1/..",
        "https://llm.example/api/../v1",
        "https://llm.example//v1",
        "https://llm.example/v1//",
        "https://llm.example/%76%31",
        "https://llm.example/v1;x",
        " https://llm.example/v1",
        "https://llm.exa\u217fple/v1",
        "https://other.example",
        "https://other.example/api/pull",
        "https://other.example/v1/../api/pull",
        "https://other.example/v1/./x",
        "https://other.example/v1/%2e%2e/api/pull",
        "https://other.example/v1/..;/api/pull",
        "https://other.example/v11",
        "https://third.example/v1",
        "https://third.example/openai/v2/more",
        "http://127.0.0.1:8081/v1",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "ftp://llm.example/",
        "//llm.example/v1",
        "llm.example",
        "https://",
        "https://llm.example:99999/",
        "https://llm.example/\nHost: evil.example",
        "https://[llm.example/",
        "https://llm.example/" + "x" * 500,
        7,
        "",
    ],
)
def test_any_other_server_is_refused(part: str, url: Any) -> None:
    given: dict[str, Any] = {"base_url": url, "model": "mine"}
    if part == "embedding":
        given["backend"] = "endpoint"
    error = refused({part: given})
    assert error.name == f"{part}.base_url"
    assert "secret" not in str(error)


def test_the_operators_embedding_server_is_no_llm_server() -> None:
    embedding = {"backend": "endpoint", "base_url": "http://vectors.example/v1", "model": "e"}
    operator = {"embedding": {"base_url": embedding["base_url"]}}
    reached = parsed({"embedding": embedding}, **operator).embedding
    assert reached is not None
    assert reached.api_key_env is None
    assert refused({"llm": {"base_url": embedding["base_url"]}}, **operator).name == "llm.base_url"


def test_without_an_operators_word_no_server_may_be_named() -> None:
    error = refused(
        {"llm": {"base_url": "http://127.0.0.1:8080/v1", "model": "m"}}, llm={}, llm_origins=[]
    )
    assert error.name == "llm.base_url"
    assert "HAULAGE_LLM_ORIGINS" in error.remedy


@pytest.mark.parametrize("name", ["PATH", "HAULAGE_DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "x"])
def test_a_payload_names_no_other_key(name: str) -> None:
    assert refused({"llm": {"api_key_env": name}}).name == "llm.api_key_env"
    keyless = {**OWN, "api_key_env": None}
    assert refused({"llm": {"api_key_env": name}}, llm=keyless).name == "llm.api_key_env"


def test_a_payload_may_repeat_the_operators_key_name() -> None:
    llm = parsed({"llm": {"api_key_env": "THE_KEY"}}).llm
    assert llm is not None
    assert llm.api_key_env == "THE_KEY"


def test_a_key_in_the_place_of_its_name_is_not_shown() -> None:
    error = refused({"llm": {"api_key_env": "sk-very-secret"}})
    assert "very-secret" not in str(error) + repr(error.value)
    error = refused({}, llm={**OWN, "api_key_env": "sk-very-secret"})
    assert "very-secret" not in str(error) + repr(error.value)


@pytest.mark.parametrize(
    ("own", "wished", "granted"),
    [(100, 10, 10), (100, 1000, 100), (100, None, 100), (None, 10, 10)],
)
def test_bounds_can_only_be_lowered(own: int | None, wished: int | None, granted: int) -> None:
    for name in ("max_calls", "max_tokens_total", "max_cost"):
        operator = {**OWN, **({name: own} if own is not None else {})}
        llm = parsed({"llm": {name: wished}}, llm=operator).llm
        assert getattr(llm, name) == granted


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("concurrency", 4),
        ("max_retries", 5),
        ("timeout_seconds", 120.0),
        ("max_output_tokens", 2_048),
    ],
)
def test_effort_can_only_be_lowered_where_the_llm_is_the_operators(
    name: str, default: float
) -> None:
    def granted(wished: float, **own: float) -> Any:
        return getattr(parsed({"llm": {name: wished}}, llm={**OWN, **own}).llm, name)

    assert granted(default - 1) == default - 1
    assert granted(default + 1) == default
    assert granted(default + 1, **{name: default + 2}) == default + 1
    assert granted(default + 1, **{name: default - 2}) == default - 2
    own_server = {"base_url": "http://127.0.0.1:8080/v1", "model": "m", name: default + 1}
    assert getattr(parsed({"llm": own_server}, llm={}).llm, name) == default + 1


@pytest.mark.parametrize("bound", [{"prompt_price": 2.0}, {"max_cost": 1.0}], ids=str)
def test_the_operators_prices_are_for_the_operators_models(bound: dict[str, float]) -> None:
    own = {**OWN, **bound}
    error = refused({"llm": {"model": "dear"}}, llm=own)
    assert error.name == "llm.model"
    assert "large" in error.remedy
    for model in ("large", "small"):
        llm = parsed({"llm": {"model": model}}, llm={**own, "models": ["small"]}).llm
        assert llm is not None
        assert llm.model == model
    assert refused({"llm": {"models": ["dear"]}}, llm=own).name == "llm.models"


def test_the_operators_prices_stand() -> None:
    priced = {**OWN, "prompt_price": 2.0, "max_cost": 1.0}
    assert refused({"llm": {"prompt_price": 0.0}}, llm=priced).name == "llm.prompt_price"
    llm = parsed({"llm": {"prompt_price": 2.0}}, llm=priced).llm
    assert llm is not None
    assert llm.prompt_price == 2.0


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("x", "llm"),
        ({"api_key": "sk-1"}, "llm.api_key"),
        ({"model": ""}, "llm.model"),
        ({"model": "a\nb"}, "llm.model"),
        ({"temperature": 3}, "llm.temperature"),
        ({"temperature": float("nan")}, "llm.temperature"),
        ({"seed": -1}, "llm.seed"),
        ({"concurrency": 0}, "llm.concurrency"),
        ({"concurrency": True}, "llm.concurrency"),
        ({"timeout_seconds": 0}, "llm.timeout_seconds"),
        ({"max_retries": 21}, "llm.max_retries"),
        ({"max_output_tokens": 1}, "llm.max_output_tokens"),
        ({"structured": "xml"}, "llm.structured"),
        ({"client": "curl"}, "llm.client"),
        ({"max_calls": -1}, "llm.max_calls"),
        ({"max_cost": "free"}, "llm.max_cost"),
        ({"headers": {}}, "llm.headers"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(given: Any, name: str) -> None:
    assert refused({"llm": given}).name == name


def test_the_seed_may_be_left_to_the_server() -> None:
    llm = parsed({"llm": {"seed": None}}).llm
    assert llm is not None
    assert llm.seed is None


@pytest.mark.parametrize(
    "given",
    [{"backend": "endpoint"}, {"backend": "lsa", "base_url": ORIGINS[0], "model": "m"}],
    ids=str,
)
def test_an_embedding_server_goes_with_its_backend(given: dict[str, Any]) -> None:
    assert refused({"embedding": given}).name.startswith("embedding")


def test_where_the_model_is_changes_no_outcome() -> None:
    def hashes(**llm: Any) -> tuple[str, str]:
        request = parse_request({"answers": ["a"], "llm": llm}, llm=OWN, llm_origins=ORIGINS)
        return request.fingerprint, request.params_hash

    assert hashes() == hashes(base_url=ORIGINS[2], concurrency=1, timeout_seconds=3)
    assert hashes() != hashes(model="small")
    assert hashes() != hashes(temperature=1)
