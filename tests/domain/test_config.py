"""Settings: sources, forms, and what is refused with which words."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from app import config, machine
from app.config import Settings, load_settings
from app.db.urls import DatabaseURL
from app.domain.errors import ConfigurationError
from app.domain.jobs import JobStatus, Limits
from app.domain.retention import DAY_SECONDS, Retention
from app.machine import usable_cpus
from app.pipelines.thematic.parameters import parse_request

SECRET = "s3cr3t!"  # noqa: S105  what must not be shown


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without any setting of ours and a folder without `.env`."""
    for name in list(os.environ):
        if name.startswith("HAULAGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "_SECRETS_FOLDERS", (str(tmp_path / "secrets"),))


def test_defaults_hold_when_nothing_is_set() -> None:
    settings = load_settings()

    assert settings.database_url is None
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.max_concurrent_jobs == usable_cpus()
    assert settings.heartbeat_seconds == settings.node_lease_seconds / 5
    assert settings.pipeline == "thematic"
    assert settings.pipelines == {}


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_described(name: str) -> None:
    assert Settings.model_fields[name].description


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("PORT", "http", "integer"),
        ("PORT", "65536", "65535"),
        ("PORT", "-1", "0"),
        ("MAX_CONCURRENT_JOBS", "0", "1"),
        ("MAX_CONCURRENT_JOBS", "1001", "1000"),
        ("MAX_CONCURRENT_JOBS", "2.5", "integer"),
        ("POLL_INTERVAL_SECONDS", "0", "greater than 0"),
        ("POLL_INTERVAL_SECONDS", "nan", "3600"),
        ("WATCHDOG_INTERVAL_SECONDS", "61", "60"),
        ("NODE_LEASE_SECONDS", "0.5", "1"),
        ("NODE_LEASE_SECONDS", "inf", "15"),
        ("HEARTBEAT_INTERVAL_SECONDS", "-1", "greater than 0"),
        ("SHUTDOWN_GRACE_SECONDS", "-1", "0"),
        ("KILL_GRACE_SECONDS", "soon", "number"),
        ("START_METHOD", "fork", "forkserver"),
        ("AUTO_MIGRATE", "perhaps", "boolean"),
        ("LOG_FORMAT", "xml", "json"),
        ("LOG_LEVEL", "LOUD", "DEBUG"),
        ("PIPELINES", "name-only", "package.module:Class"),
        ("PIPELINES", "[1]", "package.module:Class"),
    ],
)
def test_a_bad_value_is_refused_with_name_value_and_remedy(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, hint: str
) -> None:
    monkeypatch.setenv(f"HAULAGE_{name}", value)

    with pytest.raises(ConfigurationError) as caught:
        load_settings()

    error = caught.value
    assert (error.setting, error.value) == (f"HAULAGE_{name}", value)
    assert hint in error.remedy or hint in error.remedy.replace(",", "")
    assert str(error) == f"HAULAGE_{name}={value!r}: {error.remedy}"


@pytest.mark.parametrize("beat", ["0.25", "0.251", "1"])
def test_a_heartbeat_is_at_most_a_quarter_of_the_lease(
    monkeypatch: pytest.MonkeyPatch, beat: str
) -> None:
    monkeypatch.setenv("HAULAGE_NODE_LEASE_SECONDS", "1")
    monkeypatch.setenv("HAULAGE_HEARTBEAT_INTERVAL_SECONDS", beat)

    if beat == "0.25":
        assert load_settings().heartbeat_seconds == 0.25
        return
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert f"HAULAGE_HEARTBEAT_INTERVAL_SECONDS={float(beat)}" in str(caught.value)
    assert "HAULAGE_NODE_LEASE_SECONDS=1.0" in str(caught.value)
    assert "quarter" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("", {}),
        ("  ", {}),
        ("a=m:C", {"a": "m:C"}),
        (" a = m:C , b=n.o:D, ", {"a": "m:C", "b": "n.o:D"}),
        ('{"a": "m:C"}', {"a": "m:C"}),
        (
            '{"a": {"target": "m:C", "arguments": {"size": 3}}}',
            {"a": {"target": "m:C", "arguments": {"size": 3}}},
        ),
    ],
)
def test_pipelines_are_pairs_or_json(
    monkeypatch: pytest.MonkeyPatch, text: str, parsed: dict[str, Any]
) -> None:
    monkeypatch.setenv("HAULAGE_PIPELINES", text)

    assert load_settings().pipelines == parsed


def _url(settings: Settings) -> str | None:
    return None if settings.database_url is None else settings.database_url.get_secret_value()


def test_the_common_name_of_the_database_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://plain/db")
    assert _url(load_settings()) == "postgresql://plain/db"

    monkeypatch.setenv("HAULAGE_DATABASE_URL", "postgresql://ours/db")
    assert _url(load_settings()) == "postgresql://ours/db"

    assert _url(load_settings({"database_url": "postgresql://given/db"})) == "postgresql://given/db"


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAULAGE_DATABASE_URL", "")
    monkeypatch.setenv("HAULAGE_PORT", "")
    assert _url(load_settings()) is None
    assert load_settings().port == 8000

    monkeypatch.setenv("DATABASE_URL", "postgresql://plain/db")
    assert _url(load_settings()) == "postgresql://plain/db"


def test_the_environment_beats_the_file_and_the_file_the_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "haulage_port").write_text("1001")
    assert load_settings().port == 1001

    (tmp_path / ".env").write_text("HAULAGE_PORT=1002\nOTHER_PROGRAM=1\n")
    assert load_settings().port == 1002

    monkeypatch.setenv("HAULAGE_PORT", "1003")
    assert load_settings().port == 1003
    assert load_settings({"port": 1004}).port == 1004
    assert load_settings({"port": None}).port == 1003


def test_a_secret_file_gives_the_database(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "HAULAGE_DATABASE_URL").write_text(f"postgresql://u:{SECRET}@h/db\n")

    assert _url(load_settings()) == f"postgresql://u:{SECRET}@h/db"


def test_a_password_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAULAGE_DATABASE_URL", f"postgresql://user:{SECRET}@host/db")
    monkeypatch.setenv("HAULAGE_LISTEN_DATABASE_URL", f"postgresql://user:{SECRET}@host2/db")
    settings = load_settings()

    assert SECRET not in repr(settings) + str(settings) + settings.model_dump_json()
    url = DatabaseURL.parse(_url(settings) or "")
    assert SECRET not in repr(url) + str(url) + url.masked


@pytest.mark.parametrize("name", ["HAULAGE_DATABASE_URL", "HAULAGE_LISTEN_DATABASE_URL"])
def test_a_password_is_not_shown_when_its_url_is_bad(name: str) -> None:
    for bad in (
        f"mysql://user:{SECRET}@host",
        f"user:{SECRET}@host",
        f"postgresql://u:{SECRET}#@h",
    ):
        with pytest.raises(ConfigurationError) as caught:
            DatabaseURL.parse(bad, setting=name)
        assert caught.value.setting == name
        assert SECRET not in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        load_settings({name.removeprefix("HAULAGE_").lower(): [SECRET]})
    assert caught.value.setting == name
    assert SECRET not in str(caught.value)


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().port = 1


# -- CPUs -------------------------------------------------------------------------------------


@pytest.fixture
def control_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A fake /sys/fs/cgroup, empty at first, on a machine with eight CPUs."""
    root = tmp_path / "cgroup"
    (root / "cpu").mkdir(parents=True)
    read = machine._cgroup_cpus
    monkeypatch.setattr(machine, "_cgroup_cpus", lambda _: read(root))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    return root


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("250000 100000", 3),
        ("50000 100000", 1),
        ("1000 100000", 1),
        ("6400000 100000", 8),
        ("0 100000", 8),
        ("100000 0", 8),
        ("", 8),
        ("nonsense", 8),
        ("a b c", 8),
    ],
)
def test_the_quota_of_the_control_group_is_respected(
    control_group: Path, quota: str, cpus: int
) -> None:
    (control_group / "cpu.max").write_text(quota)

    assert usable_cpus() == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("-1", 8), ("150000", 2), ("junk", 8)])
def test_the_quota_of_an_old_control_group_is_respected(
    control_group: Path, quota: str, cpus: int
) -> None:
    (control_group / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (control_group / "cpu" / "cpu.cfs_period_us").write_text("100000\n")

    assert usable_cpus() == cpus


def test_the_affinity_counts_when_it_is_less_than_the_quota(
    control_group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (control_group / "cpu.max").write_text("400000 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5}, raising=False)
    assert usable_cpus() == 1

    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cpus() == 4


def test_a_fixed_number_of_jobs_wins_over_the_cpus(
    control_group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (control_group / "cpu.max").write_text("100000 100000")
    monkeypatch.setenv("HAULAGE_MAX_CONCURRENT_JOBS", "7")

    assert load_settings().max_concurrent_jobs == 7


def test_pipelines_with_arguments_cross_the_environment_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = {"näme": {"target": "m:C", "arguments": {"text": 'a,b="c"', "n": [1, None]}}}
    monkeypatch.setenv("HAULAGE_PIPELINES", json.dumps(entries))

    assert load_settings().pipelines == entries


@pytest.mark.parametrize(
    ("meminfo", "limit", "expected"),
    [
        ("MemTotal:       2048 kB\nMemFree: 1 kB\n", None, 2 * 1024 * 1024),
        ("MemTotal:       2048 kB\n", "1048576\n", 1024 * 1024),
        ("MemTotal:       2048 kB\n", "9999999999\n", 2 * 1024 * 1024),
        ("MemTotal:       2048 kB\n", "max\n", 2 * 1024 * 1024),
        (None, "1048576\n", None),
    ],
)
def test_usable_memory_is_the_least_of_machine_and_control_group(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    meminfo: str | None,
    limit: str | None,
    expected: int | None,
) -> None:
    group = tmp_path / "group"
    group.mkdir()
    monkeypatch.setattr(machine, "_own_cgroups", lambda: [group, tmp_path])
    if meminfo is not None:
        (tmp_path / "meminfo").write_text(meminfo)
    if limit is not None:
        (group / "memory.max").write_text(limit)

    assert machine.usable_memory_bytes(tmp_path / "meminfo") == expected


def test_a_job_gets_its_share_of_the_memory_and_never_less_than_a_gibibyte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "usable_memory_bytes", lambda: 10 * 1024**3)

    assert machine.memory_share_bytes(2) == 4 * 1024**3
    assert machine.memory_share_bytes(100) == 1024**3


def test_no_job_is_without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = load_settings().default_limits

    assert (limits.timeout_seconds, limits.start_timeout_seconds) == (21_600.0, 60.0)
    assert limits.memory_limit_bytes is not None
    assert limits.stall_seconds is None

    monkeypatch.setenv("HAULAGE_JOB_STALL_SECONDS", "30")
    monkeypatch.setenv("HAULAGE_JOB_MEMORY_LIMIT_BYTES", str(2**30))
    assert load_settings().default_limits == Limits(21_600.0, 60.0, 30.0, 2**30)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080",
        "https://llm.example/v1/",
        "http://[::1]:8080/v1",
        "http://llm_server:11434/v1",
        "https://api.example/v4/accounts/0a1b/ai/v1",
    ],
)
def test_every_address_of_the_settings_is_one_that_jobs_can_use(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAULAGE_LLM_BASE_URL", url)
    monkeypatch.setenv("HAULAGE_LLM_MODEL", "small")
    llm = load_settings().thematic_arguments["defaults"]["llm"]
    used = parse_request({"answers": []}, llm=llm).parameters.llm
    assert used is not None
    assert used.base_url == url


def test_the_pipeline_gets_no_arguments_when_no_llm_is_set() -> None:
    assert load_settings().thematic_arguments == {}


def test_the_llm_settings_are_arguments_of_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "BASE_URL": "http://127.0.0.1:8080/v1",
        "MODEL": "small",
        "API_KEY_ENV": "MY_KEY",
        "ORIGINS": "https://one.example, https://two.example:8443",
    }.items():
        monkeypatch.setenv(f"HAULAGE_LLM_{name}", value)

    assert load_settings().thematic_arguments == {
        "defaults": {
            "llm": {
                "base_url": "http://127.0.0.1:8080/v1",
                "model": "small",
                "api_key_env": "MY_KEY",
            }
        },
        "llm_origins": ["https://one.example", "https://two.example:8443"],
    }


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"BASE_URL": "http://127.0.0.1/v1"}, "set both"),
        ({"MODEL": "small"}, "set both"),
        ({"BASE_URL": "127.0.0.1:8080", "MODEL": "small"}, "https://host:port/v1"),
        ({"BASE_URL": f"https://u:{SECRET}@h/v1", "MODEL": "small"}, "https://host:port/v1"),
        ({"ORIGINS": f"https://u:{SECRET}@h"}, "https://host:port/v1"),
        ({"ORIGINS": f"https://h/v1?key={SECRET}"}, "https://host:port/v1"),
        ({"BASE_URL": f"https://h/v1#{SECRET}", "MODEL": "small"}, "https://host:port/v1"),
        ({"BASE_URL": f"https://h/%2e/{SECRET}", "MODEL": "small"}, "https://host:port/v1"),
        ({"ORIGINS": f"https://h:99999/{SECRET}"}, "https://host:port/v1"),
        ({"API_KEY_ENV": f"sk-{SECRET}"}, "match pattern"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_llm_settings_are_refused_without_being_shown(
    given: dict[str, str], hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"HAULAGE_LLM_{name}", value)

    with pytest.raises(ConfigurationError, match=hint) as caught:
        load_settings()

    assert SECRET not in str(caught.value)


def test_retention_is_on_by_default_and_each_age_can_be_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load_settings().retention == Retention(
        jobs={
            JobStatus.COMPLETED: 30 * DAY_SECONDS,
            JobStatus.FAILED: 90 * DAY_SECONDS,
            JobStatus.CANCELLED: 7 * DAY_SECONDS,
        },
        dataset_seconds=90 * DAY_SECONDS,
        call_seconds=90 * DAY_SECONDS,
    )
    for name, value in {
        "COMPLETED_DAYS": "0.5",
        "FAILED_DAYS": "0",
        "DATASET_DAYS": "0",
        "CALL_DAYS": "0",
        "INTERVAL_SECONDS": "5",
    }.items():
        monkeypatch.setenv(f"HAULAGE_RETENTION_{name}", value)

    assert load_settings().retention == Retention(
        jobs={JobStatus.COMPLETED: DAY_SECONDS / 2, JobStatus.CANCELLED: 7 * DAY_SECONDS},
        interval_seconds=5,
    )


@pytest.mark.parametrize("value", ["-1", "nan", "36501", "soon"])
def test_an_age_that_makes_no_sense_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAULAGE_RETENTION_FAILED_DAYS", value)

    with pytest.raises(ConfigurationError, match="HAULAGE_RETENTION_FAILED_DAYS"):
        load_settings()
