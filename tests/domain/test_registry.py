"""Which pipelines are registered, and that none is imported for it."""

import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from app.domain.errors import ConfigurationError
from app.domain.jobs import Registration
from app.pipelines import registry
from app.pipelines.registry import ENTRY_POINT_GROUP, load_registrations


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Entry points as installed packages would bring them."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda **_: found)
    return found


def test_our_own_pipelines_are_there_when_nothing_is_configured(plugins: list[EntryPoint]) -> None:
    registrations = load_registrations({})

    assert {"thematic", "demo-sleep", "demo-echo", "demo-fail", "demo-crash"} == set(registrations)
    assert registrations["demo-echo"] == Registration("demo-echo", "app.pipelines.demo:Echo", {})


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
