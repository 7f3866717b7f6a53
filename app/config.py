"""Settings: the only reader of the environment. Workers never import this module.

Sources, strongest first: environment (HAULAGE_*), `.env` in the working directory, files in the
secrets folders. A bad value is refused at start with its name, value and remedy.
"""

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.domain.errors import ConfigurationError
from app.domain.jobs import (
    LEAST_MEMORY_LIMIT_BYTES,
    LEAST_STALL_SECONDS,
    MAX_START_TIMEOUT_SECONDS,
    MAX_TIMEOUT_SECONDS,
    JobStatus,
    Limits,
)
from app.domain.keys import is_well_formed
from app.domain.retention import DAY_SECONDS, Retention
from app.machine import memory_share_bytes, usable_cpus
from app.setting_values import Address, Host, Origin, parse_list, parse_pipelines

PREFIX: Final = "HAULAGE_"
POLL_INTERVAL_SECONDS: Final = 2.0
WATCHDOG_INTERVAL_SECONDS: Final = 2.0
NODE_LEASE_SECONDS: Final = 15.0
PIPELINE: Final = "thematic"
JOB_TIMEOUT_SECONDS: Final = 6 * 3_600.0
JOB_START_TIMEOUT_SECONDS: Final = 60.0

_SECRETS_FOLDERS: Final = ("/run/secrets", "/etc/haulage/secrets")


MAX_CONCURRENT_JOBS: Final = usable_cpus()


class Settings(BaseSettings):
    """Every setting with its default; the README's table is generated from here."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
    )

    database_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("HAULAGE_DATABASE_URL", "DATABASE_URL"),
        description="PostgreSQL to use, or MongoDB (`mongodb://`); without it Haulage starts the "
        "bundled PostgreSQL. `DATABASE_URL` is read too.",
    )
    listen_database_url: SecretStr | None = Field(
        default=None,
        description="The same server past a connection pooler, for LISTEN.",
    )
    data_dir: Path | None = Field(
        default=None,
        description="Folder of the bundled PostgreSQL; default `/var/lib/haulage` for root, "
        "`~/.local/share/haulage` otherwise.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65_535, description="Port; 0 takes a free one.")
    allow_unauthenticated: bool = Field(
        default=False,
        description="Listen on other than loopback addresses without API keys, and answer "
        "everybody there as long as no key was ever made.",
    )
    require_key: bool = Field(
        default=False,
        description="Ask for a key even on loopback and while none is stored; without it that "
        "begins with the first active one.",
    )
    admin_key: SecretStr | None = Field(
        default=None,
        description="A key with the scope `admin` that is not stored: `hlg_` and 43 letters, "
        "digits, `-` or `_`, random ones.",
    )
    api_key: SecretStr | None = Field(
        default=None, description="Key that commands send to a running Haulage (`--url`)."
    )
    allowed_hosts: Annotated[list[Host], NoDecode, BeforeValidator(parse_list)] = Field(
        default_factory=list,
        description="Names in the `Host` header of requests without a key, divided by commas, "
        "beside those of loopback; default only those where the request comes in by loopback.",
    )
    cors_origins: Annotated[
        list[Origin],
        NoDecode,
        BeforeValidator(parse_list),
    ] = Field(
        default_factory=list,
        description="Web origins whose pages may use the API, divided by commas, such as "
        "`https://app.example`; default none.",
    )
    max_pending_jobs_per_key: int = Field(
        default=10_000,
        ge=0,
        le=10_000_000,
        description="Pending jobs that one API key may have, unless it has a cap of its own.",
    )
    max_pending_bytes_per_key: int = Field(
        default=1024**3,
        ge=0,
        description="Bytes of their payloads together, as they are stored.",
    )
    max_datasets_per_key: int = Field(
        default=200,
        ge=0,
        le=1_000_000,
        description="Stored datasets that one API key may have, of up to 64 MiB each.",
    )
    webhook_allow: Annotated[list[str], NoDecode, BeforeValidator(parse_list)] = Field(
        default_factory=list,
        description="Hosts and networks that webhooks may go to beside public addresses, divided "
        "by commas, such as `hooks.internal,10.1.0.0/16`.",
    )
    max_concurrent_jobs: int = Field(
        default_factory=usable_cpus,
        ge=1,
        le=1_000,
        description="Jobs that run at once on this node; default usable CPUs (affinity, cgroup).",
    )
    poll_interval_seconds: float = Field(
        default=POLL_INTERVAL_SECONDS,
        gt=0,
        le=3_600,
        description="Longest wait for a job whose wake-up got lost.",
    )
    watchdog_interval_seconds: float = Field(
        default=WATCHDOG_INTERVAL_SECONDS,
        gt=0,
        le=60,
        description="Between two looks for lost, dead or overdue jobs.",
    )
    node_lease_seconds: float = Field(
        default=NODE_LEASE_SECONDS,
        ge=1,
        le=15,
        description="A node that has not renewed for so long is lost.",
    )
    heartbeat_interval_seconds: float | None = Field(
        default=None,
        gt=0,
        description="Between two renewals, at most a quarter of the lease; default a fifth of it.",
    )
    job_timeout_seconds: float = Field(
        default=JOB_TIMEOUT_SECONDS,
        gt=0,
        le=MAX_TIMEOUT_SECONDS,
        description="Run-time limit of jobs that have none of their own.",
    )
    job_start_timeout_seconds: float = Field(
        default=JOB_START_TIMEOUT_SECONDS,
        gt=0,
        le=MAX_START_TIMEOUT_SECONDS,
        description="Limit for importing and constructing a job's pipeline.",
    )
    job_stall_seconds: float | None = Field(
        default=None,
        ge=LEAST_STALL_SECONDS,
        le=MAX_TIMEOUT_SECONDS,
        description="End jobs that report no progress for so long; default never.",
    )
    job_memory_limit_bytes: int | None = Field(
        default=None,
        ge=LEAST_MEMORY_LIMIT_BYTES,
        description="Memory limit of all processes of a job; default four fifths of the usable "
        "memory divided by the slots, at least 1 GiB.",
    )
    shutdown_grace_seconds: float = Field(
        default=30.0, ge=0, le=86_400, description="How long a stopping node lets its jobs go on."
    )
    kill_grace_seconds: float = Field(
        default=5.0, ge=0, le=600, description="Between SIGTERM and SIGKILL of a job's processes."
    )
    pipeline: str = Field(
        default=PIPELINE, min_length=1, description="Pipeline of jobs that name none."
    )
    pipelines: Annotated[dict[str, Any], NoDecode, BeforeValidator(parse_pipelines)] = Field(
        default_factory=dict,
        description="More pipelines: `name=package.module:Class`, or JSON with constructor "
        'arguments: `{"name": {"target": "package.module:Class", "arguments": {"size": 3}}}`. '
        "Under `thematic` with its own target they are added to what `HAULAGE_LLM_*` say.",
    )
    llm_base_url: Address | None = Field(
        default=None,
        description="OpenAI-compatible server that `thematic` asks, e.g. "
        "`http://127.0.0.1:8080/v1`; without it themes are named by keywords.",
    )
    llm_model: str | None = Field(default=None, min_length=1, description="Model to ask there.")
    llm_api_key_env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the environment variable that holds its key; never the key itself.",
    )
    llm_origins: Annotated[list[Address], NoDecode, BeforeValidator(parse_list)] = Field(
        default_factory=list,
        description="Further base URLs that a job may name as `llm.base_url` or "
        "`embedding.base_url`, divided by commas; one without a path stands for `/v1` there and "
        "below. For `llm` they get the same key, for `embedding` none.",
    )
    retention_completed_days: float = Field(
        default=30.0,
        ge=0,
        le=36_500,
        description="Completed jobs are deleted this long after their end, with their results; "
        "0 keeps them. A month lets people come back to a result; what is to stay is exported.",
    )
    retention_failed_days: float = Field(
        default=90.0,
        ge=0,
        le=36_500,
        description="The same for failed jobs, longer: their logs and checkpoints are what a "
        "search for the cause, or a retry, needs.",
    )
    retention_cancelled_days: float = Field(
        default=7.0,
        ge=0,
        le=36_500,
        description="The same for cancelled jobs, shorter: somebody has decided against them.",
    )
    retention_dataset_days: float = Field(
        default=90.0,
        ge=0,
        le=36_500,
        description="Datasets are deleted this long after they were stored, unless a job names "
        "them (in `dataset.id` of its payload); 0 keeps them.",
    )
    retention_call_days: float = Field(
        default=90.0,
        ge=0,
        le=36_500,
        description="Kept answers of paid calls are deleted at this age; 0 keeps them. What they "
        "cost is told with their jobs.",
    )
    retention_interval_seconds: float = Field(
        default=60.0, gt=0, le=86_400, description="Between two looks for what is old enough."
    )
    start_method: Literal["forkserver", "spawn"] = Field(
        default="forkserver" if platform.system() == "Linux" else "spawn",
        description="How worker processes start: `forkserver` (preloaded, Linux) or `spawn`.",
    )
    auto_migrate: bool = Field(
        default=False,
        description="Upgrade a given database's schema at start (the bundled one always is).",
    )
    notify: bool = Field(
        default=True, description="Wake schedulers by NOTIFY; without it they poll."
    )
    log_format: Literal["console", "json"] = Field(
        default="console", description="Log lines for people or as JSON."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least level that is logged."
    )

    @model_validator(mode="after")
    def _check_heartbeat(self) -> Self:
        if self.heartbeat_seconds > self.node_lease_seconds / 4:
            raise ValueError(
                f"HAULAGE_HEARTBEAT_INTERVAL_SECONDS={self.heartbeat_seconds}: make it at most a "
                f"quarter of HAULAGE_NODE_LEASE_SECONDS={self.node_lease_seconds}, or a busy "
                "moment counts as a lost node"
            )
        return self

    @model_validator(mode="after")
    def _check_llm(self) -> Self:
        if (self.llm_base_url is None) != (self.llm_model is None):
            raise ValueError(
                "HAULAGE_LLM_BASE_URL and HAULAGE_LLM_MODEL: set both, or neither to name themes "
                "by keywords"
            )
        return self

    @model_validator(mode="after")
    def _check_admin_key(self) -> Self:
        if self.admin_key is not None and not is_well_formed(self.admin_key.get_secret_value()):
            raise ValueError(
                "HAULAGE_ADMIN_KEY: hlg_ and 43 characters of A-Z a-z 0-9 - _, random ones; "
                "`haulage keys create NAME --unstored` prints one"
            )
        return self

    @property
    def thematic_arguments(self) -> dict[str, Any]:
        """What the built-in `thematic` is constructed with."""
        llm = {
            "base_url": self.llm_base_url,
            "model": self.llm_model,
            "api_key_env": self.llm_api_key_env,
        }
        given = {name: value for name, value in llm.items() if value is not None}
        arguments: dict[str, Any] = {"defaults": {"llm": given}} if given else {}
        return {**arguments, "llm_origins": self.llm_origins} if self.llm_origins else arguments

    @property
    def default_limits(self) -> Limits:
        """For what neither a job nor its pipeline says."""
        return Limits(
            self.job_timeout_seconds,
            self.job_start_timeout_seconds,
            self.job_stall_seconds,
            self.job_memory_limit_bytes or memory_share_bytes(self.max_concurrent_jobs),
        )

    @property
    def retention(self) -> Retention:
        """How long what is done with is kept."""
        days = {
            JobStatus.COMPLETED: self.retention_completed_days,
            JobStatus.FAILED: self.retention_failed_days,
            JobStatus.CANCELLED: self.retention_cancelled_days,
        }
        return Retention(
            jobs={status: age * DAY_SECONDS for status, age in days.items() if age > 0},
            dataset_seconds=self.retention_dataset_days * DAY_SECONDS or None,
            call_seconds=self.retention_call_days * DAY_SECONDS or None,
            interval_seconds=self.retention_interval_seconds,
        )

    @property
    def heartbeat_seconds(self) -> float:
        """Between two renewals of the node's lease."""
        return self.heartbeat_interval_seconds or self.node_lease_seconds / 5


def load_settings(overrides: Mapping[str, Any] | None = None) -> Settings:
    """Settings from the environment and its files; `overrides` (by field name) win.

    Raises:
        ConfigurationError: naming the first bad setting, its value and the remedy.
    """
    folders = [folder for folder in _SECRETS_FOLDERS if Path(folder).is_dir()]
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    try:
        return Settings(_secrets_dir=folders or None, **_by_alias(given))  # type: ignore[call-arg]
    except ValidationError as error:
        raise _configuration_error(error) from None
    except ValueError as error:  # a source that cannot be parsed at all
        raise ConfigurationError(PREFIX + "*", "", str(error)) from None


def _by_alias(overrides: Mapping[str, Any]) -> dict[str, Any]:
    aliases = {"database_url": "HAULAGE_DATABASE_URL"}
    return {aliases.get(name, name): value for name, value in overrides.items()}


def _configuration_error(error: ValidationError) -> ConfigurationError:
    first = error.errors()[0]
    location = str(first["loc"][0]) if first["loc"] else ""
    name = location if location.isupper() else PREFIX + location.upper()
    remedy = str(first["msg"]).removeprefix("Value error, ")
    if not location:
        # A rule over several settings: its message names them.
        return ConfigurationError("settings", "", remedy)
    # An address may have a password in it, the arguments of a pipeline a key, and a variable's name
    # may be the key by mistake.
    given = first.get("input")
    may_hold_secrets = re.search("URL|LLM|(ADMIN|API)_KEY", name) or (
        name.endswith("PIPELINES") and "{" in str(given)
    )
    value = "***" if may_hold_secrets else given
    return ConfigurationError(name, value, remedy)
