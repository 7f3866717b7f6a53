"""Which pipelines are registered, and that none is imported for it."""

import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from app.domain.errors import ConfigurationError
from app.domain.jobs import JobOptions, Limits, Registration
from app.pipelines import registry
from app.pipelines.registry import ENTRY_POINT_GROUP, load_registrations, with_defaults


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Entry points as installed packages would bring them."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda **_: found)
    return found


def test_our_own_pipelines_are_there_when_nothing_is_configured(plugins: list[EntryPoint]) -> None:
    registrations = load_registrations({})

    assert {"thematic", "demo-sleep", "demo-echo", "demo-fail", "demo-crash"} == set(registrations)
    echo = registrations["demo-echo"]
    assert (echo.target, echo.arguments) == ("app.pipelines.demo:Echo", {})
    # What they say of themselves is known without importing them.
    assert echo.payload_schema is not None
    assert echo.description is not None


def test_our_own_pipelines_get_their_arguments_unless_the_settings_replace_them(
    plugins: list[EntryPoint],
) -> None:
    arguments = {"thematic": {"llm_origins": ["http://127.0.0.1:8080"]}}

    ours = load_registrations({}, arguments)["thematic"]
    theirs = load_registrations({"thematic": "a:B"}, arguments)["thematic"]

    assert ours.arguments == arguments["thematic"]
    assert theirs == Registration("thematic", "a:B", {})


OURS = "app.pipelines.thematic.pipeline:ThematicAnalysis"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (OURS, {"defaults": {"llm": {"model": "m", "max_cost": 1}}, "llm_origins": ["http://a"]}),
        (
            {"target": OURS, "max_attempts": 5},
            {"defaults": {"llm": {"model": "m", "max_cost": 1}}, "llm_origins": ["http://a"]},
        ),
        (
            {
                "target": OURS,
                "arguments": {
                    "max_answers": 10,
                    "defaults": {"seed": 7, "llm": {"max_cost": 2, "models": ["n"]}},
                    "llm_origins": ["http://b"],
                },
            },
            {
                "max_answers": 10,
                "defaults": {"seed": 7, "llm": {"model": "m", "max_cost": 2, "models": ["n"]}},
                "llm_origins": ["http://b"],
            },
        ),
    ],
    ids=["target", "limits", "arguments"],
)
def test_arguments_of_our_own_pipeline_are_added_to_when_the_settings_name_it(
    entry: Any, expected: dict[str, Any], plugins: list[EntryPoint]
) -> None:
    given = {"defaults": {"llm": {"model": "m", "max_cost": 1}}, "llm_origins": ["http://a"]}

    registration = load_registrations({"thematic": entry}, {"thematic": given})["thematic"]

    assert registration.arguments == expected
    assert given == {
        "defaults": {"llm": {"model": "m", "max_cost": 1}},
        "llm_origins": ["http://a"],
    }
    if not isinstance(entry, str):
        assert registration.max_attempts == entry.get("max_attempts")


def test_no_pipeline_is_imported_when_they_are_registered() -> None:
    before = set(sys.modules)

    load_registrations({"mine": "package_that_is_not_there.module:Class"})

    assert not any("package_that_is_not_there" in name for name in set(sys.modules) - before)


def test_a_later_source_wins_when_a_name_comes_twice(plugins: list[EntryPoint]) -> None:
    plugins += [
        EntryPoint("demo-echo", "plugin:Echo", ENTRY_POINT_GROUP),
        EntryPoint("theirs", "plugin:Theirs", ENTRY_POINT_GROUP),
    ]

    registrations = load_registrations({"theirs": "settings.module:Mine"})

    assert registrations["demo-echo"].target == "plugin:Echo"
    assert registrations["theirs"].target == "settings.module:Mine"


@pytest.mark.parametrize(
    ("entry", "target", "arguments"),
    [
        ("a.b:C", "a.b:C", {}),
        ("a_1:C.D", "a_1:C.D", {}),
        ({"target": "a.b:C"}, "a.b:C", {}),
        ({"target": "a.b:C", "arguments": {}}, "a.b:C", {}),
        ({"target": "a.b:C", "arguments": {"size": 3}}, "a.b:C", {"size": 3}),
    ],
    ids=repr,
)
def test_an_entry_is_a_target_or_one_with_arguments(
    entry: Any, target: str, arguments: dict[str, Any]
) -> None:
    assert load_registrations({"mine": entry})["mine"] == Registration("mine", target, arguments)


def test_one_class_is_registered_twice_with_different_arguments() -> None:
    entries = {name: {"target": "a:B", "arguments": {"n": name}} for name in ("one", "two")}

    registrations = load_registrations(entries)

    assert [registrations[name].arguments for name in entries] == [{"n": "one"}, {"n": "two"}]


@pytest.mark.parametrize(
    "target",
    ["", "os", "os:", ":system", "../x:Y", "a..b:C", "a.b:C()", "a b:C", "1a:B", "a:1B", ".a:B"],
)
def test_a_target_is_refused_when_it_is_no_import_path(target: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_registrations({"mine": target})

    assert (caught.value.setting, caught.value.value) == ("HAULAGE_PIPELINES", target)
    assert "package.module:Class" in caught.value.remedy


@pytest.mark.parametrize("name", ["", " ", "-x", "a b", "a/b", "a:b", "ä", "x" * 101, "a\n"])
def test_a_name_is_refused_when_it_has_other_characters(name: str) -> None:
    with pytest.raises(ConfigurationError, match="letters, digits") as caught:
        load_registrations({name: "a:B"})

    assert caught.value.value == name


@pytest.mark.parametrize(
    "entry",
    [None, 1, [], {}, {"target": 1}, {"arguments": {}}, {"target": "a:B", "size": 3}],
    ids=repr,
)
def test_an_entry_is_refused_when_it_has_another_form(entry: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"HAULAGE_PIPELINES=.*target"):
        load_registrations({"mine": entry})


@pytest.mark.parametrize("arguments", [[], "x", 1, None], ids=repr)
def test_arguments_are_refused_when_they_are_no_object(arguments: Any) -> None:
    with pytest.raises(ConfigurationError, match="JSON object"):
        load_registrations({"mine": {"target": "a:B", "arguments": arguments}})


DEFAULTS = {
    "max_attempts": 3,
    "timeout_seconds": 60,
    "start_timeout_seconds": 5.5,
    "stall_seconds": 20,
    "memory_limit_bytes": 2**31,
}


def test_the_settings_give_a_pipeline_defaults_for_its_jobs() -> None:
    mine = load_registrations({"mine": {"target": "a:B", **DEFAULTS}})["mine"]

    assert mine == Registration("mine", "a:B", {}, 3, Limits(60.0, 5.5, 20.0, 2**31))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_attempts", 0),
        ("timeout_seconds", -1),
        ("stall_seconds", "60"),
        ("memory_limit_bytes", True),
        ("timeout_seconds", float("inf")),
        ("timeout_seconds", float("nan")),
        # As a job could not have it either; the first is most likely a mistake in the unit.
        ("memory_limit_bytes", 512),
        ("stall_seconds", 0.5),
        ("max_attempts", 101),
    ],
)
def test_a_default_is_refused_when_no_job_could_have_it(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} has to be a number from"):
        load_registrations({"mine": {"target": "a:B", name: value}})


def test_the_settings_win_over_what_a_class_declares() -> None:
    configured = Registration("mine", "a:B", {}, None, Limits(stall_seconds=1.0))

    completed = with_defaults(configured, {"max_attempts": 2, "stall_seconds": 9})

    assert completed == Registration("mine", "a:B", {}, 2, Limits(stall_seconds=1.0))


@pytest.mark.parametrize("defaults", [{"timeout": 3}, {"max_attempts": None}])
def test_what_a_class_declares_is_refused_when_nobody_knows_it(defaults: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is none of|has to be a number"):
        with_defaults(Registration("mine", "a:B"), defaults)


def test_a_job_keeps_what_it_says_itself() -> None:
    pipeline = Registration("mine", "a:B", {}, 3, Limits(60.0, None, 20.0))

    said = JobOptions(max_attempts=1, limits=Limits(5.0, 6.0))
    assert pipeline.complete(said) == JobOptions(max_attempts=1, limits=Limits(5.0, 6.0, 20.0))
    assert pipeline.complete(JobOptions()) == JobOptions(
        max_attempts=3, limits=Limits(60.0, None, 20.0)
    )
