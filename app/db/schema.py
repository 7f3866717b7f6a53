"""The tables in the schema `haulage`: what alembic compares with and dynamic reads compose from.

`jobs` is narrow and hot; everything wide or chatty lives beside it and goes when the job goes.
Statuses are text with a check, never enum types (a new value must not need an exclusive lock, and
asyncpg would introspect the type in every connection). Only timestamptz; only the database's clock.
"""

from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.domain.jobs import AttemptOutcome, JobStatus

SCHEMA: Final = "haulage"

metadata: Final = MetaData(
    schema=SCHEMA,
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    },
)

_NOW: Final = text("now()")
_EMPTY_OBJECT: Final = text("'{}'::jsonb")
_EMPTY_TEXTS: Final = text("'{}'::text[]")

# A job leaves two dead rows, none of them heap-only: its status is in every claim's index. Measured
# at the server's defaults: 88,000 dead rows after 100,000 jobs instead of 1,200; record 30 of
# docs/decisions.md. These rows are small and vacuum of them is cheap.
_HOT: Final = {
    "fillfactor": "85",
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "5000",
    "autovacuum_analyze_scale_factor": "0",
    "autovacuum_analyze_threshold": "20000",
    "autovacuum_vacuum_cost_delay": "0",
}


def _timestamp(name: str, *, nullable: bool = True, is_now: bool = False) -> Column[Any]:
    return Column(
        name,
        DateTime(timezone=True),
        nullable=nullable and not is_now,
        server_default=_NOW if is_now else None,
    )


def _job_id(*, primary_key: bool = False) -> Column[Any]:
    return Column(
        "job_id",
        Uuid,
        ForeignKey(f"{SCHEMA}.jobs.id", ondelete="CASCADE"),
        primary_key=primary_key,
        nullable=False,
    )


def _one_of(column: str, values: list[str]) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} in ({listed})", name=column)


jobs: Final = Table(
    "jobs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("pipeline", Text, nullable=False),
    Column("queue", Text, nullable=False, server_default="default"),
    Column("status", Text, nullable=False, server_default="pending"),
    Column("priority", SmallInteger, nullable=False, server_default="0"),
    _timestamp("run_at", is_now=True),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("max_attempts", Integer, nullable=False, server_default="1"),
    Column("node_losses", Integer, nullable=False, server_default="0"),
    Column("claim_no", BigInteger, nullable=False, server_default="0"),
    Column("node_id", Uuid),
    _timestamp("created_at", is_now=True),
    _timestamp("started_at"),
    _timestamp("finished_at"),
    _timestamp("cancel_requested_at"),
    Column("timeout_seconds", Double),
    Column("start_timeout_seconds", Double),
    Column("memory_limit_bytes", BigInteger),
    Column("stall_seconds", Double),
    Column("batch_id", Uuid),
    Column("dataset_id", Uuid, ForeignKey(f"{SCHEMA}.datasets.id")),
    Column("idempotency_key", Text),
    Column("payload_hash", LargeBinary),
    Column("submitted_by", Text, nullable=False, server_default=""),
    Column("tags", ARRAY(Text), nullable=False, server_default=_EMPTY_TEXTS),
    Column("metadata", JSONB, nullable=False, server_default=_EMPTY_OBJECT),
    _one_of("status", [status.value for status in JobStatus]),
    CheckConstraint("attempt >= 0 and max_attempts >= 1", name="attempts"),
    CheckConstraint("status <> 'running' or node_id is not null", name="running_has_node"),
    postgresql_with=_HOT,
)
# The claim's order; its WHERE keeps the index as small as the queue.
Index(
    "jobs_claim_idx",
    jobs.c.priority.desc(),
    jobs.c.run_at,
    jobs.c.id,
    postgresql_where=text("status = 'pending'"),
)
# The same for each queue: where some are paused, claims go by the others. The columns beside the
# key are for reports, which then read no row: record 27 of docs/decisions.md.
Index(
    "jobs_waiting_idx",
    jobs.c.queue,
    jobs.c.priority.desc(),
    jobs.c.run_at,
    jobs.c.id,
    postgresql_include=["pipeline", "claim_no"],
    postgresql_where=text("status = 'pending'"),
)
Index("jobs_running_idx", jobs.c.node_id, postgresql_where=text("status = 'running'"))
# What retention walks: each status has an age of its own.
Index(
    "jobs_ended_idx",
    jobs.c.status,
    jobs.c.finished_at,
    postgresql_where=text("finished_at is not null"),
)
# The few that people look for among the many that went well, in the order of lists.
Index("jobs_not_completed_idx", jobs.c.id, postgresql_where=text("status <> 'completed'"))
Index("jobs_dataset_idx", jobs.c.dataset_id, postgresql_where=text("dataset_id is not null"))
Index("jobs_batch_idx", jobs.c.batch_id, postgresql_where=text("batch_id is not null"))
Index(
    "jobs_idempotency_idx",
    jobs.c.submitted_by,
    jobs.c.idempotency_key,
    unique=True,
    postgresql_where=text("idempotency_key is not null"),
)
# Jobs of an API key count against its caps while they wait; those of nobody known are not in it.
Index(
    "jobs_submitter_idx",
    jobs.c.submitted_by,
    postgresql_where=text("status = 'pending' and submitted_by <> ''"),
)

job_payloads: Final = Table(
    "job_payloads",
    metadata,
    _job_id(primary_key=True),
    Column("payload", JSONB, nullable=False),
)
# Which datasets jobs name in their payloads: those are kept.
Index(
    "job_payloads_dataset_idx",
    job_payloads.c.payload[("dataset", "id")].astext,
    postgresql_where=text("payload ? 'dataset'"),
)

job_results: Final = Table(
    "job_results",
    metadata,
    _job_id(primary_key=True),
    Column("claim_no", BigInteger, nullable=False),
    Column("result", JSONB, nullable=False),
    _timestamp("created_at", is_now=True),
)
# What views about analyses go by: results of other pipelines are not unpacked to be passed over.
Index(
    "job_results_analyses_idx",
    job_results.c.job_id,
    postgresql_where=text("haulage.is_analysis(result)"),
)

job_checkpoints: Final = Table(
    "job_checkpoints",
    metadata,
    _job_id(primary_key=True),
    Column("stage", Text, primary_key=True),
    Column("claim_no", BigInteger, nullable=False),
    Column("data", JSONB, nullable=False),
    _timestamp("saved_at", is_now=True),
)

job_attempts: Final = Table(
    "job_attempts",
    metadata,
    _job_id(primary_key=True),
    Column("claim_no", BigInteger, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("node_id", Uuid, nullable=False),
    Column("pid", Integer),
    _timestamp("started_at", is_now=True),
    _timestamp("ended_at"),
    Column("outcome", Text),
    Column("cause", Text),
    Column("exit_code", Integer),
    Column("signal", Integer),
    Column("error_class", Text),
    Column("error_message", Text),
    Column("traceback", Text),
    Column("peak_memory_bytes", BigInteger),
    Column("cpu_seconds", Double),
    Column("progress_fraction", Double),
    Column("progress_stage", Text),
    Column("progress_message", Text),
    _timestamp("progress_at"),
    Column("last_line_no", Integer, nullable=False, server_default=text("0")),
    _one_of("outcome", [outcome.value for outcome in AttemptOutcome]),
    CheckConstraint("(ended_at is null) = (outcome is null)", name="ended_has_outcome"),
    postgresql_with={"fillfactor": "85"},
)

job_events: Final = Table(
    "job_events",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _job_id(),
    Column("claim_no", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("stage", Text),
    Column("fraction", Double),
    Column("message", Text),
    _timestamp("created_at", is_now=True),
    _one_of("kind", ["status", "milestone"]),
)
Index("job_events_job_idx", job_events.c.job_id, job_events.c.id)

job_logs: Final = Table(
    "job_logs",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _job_id(),
    Column("claim_no", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("line_no", Integer, nullable=False, server_default=text("0")),
    _timestamp("at", nullable=False),
    Column("level", SmallInteger, nullable=False),
    Column("source", Text, nullable=False),
    Column("line", Text, nullable=False),
)
Index("job_logs_job_idx", job_logs.c.job_id, job_logs.c.id)

datasets: Final = Table(
    "datasets",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    Column("detected", JSONB, nullable=False, server_default=_EMPTY_OBJECT),
    Column("columns", ARRAY(Text), nullable=False),
    Column("row_count", Integer, nullable=False),
    Column("submitted_by", Text, nullable=False, server_default=""),
    _timestamp("created_at", is_now=True),
)
Index("datasets_sha256_idx", datasets.c.sha256, datasets.c.id)
# How many an API key has is asked before each upload.
Index(
    "datasets_submitter_idx",
    datasets.c.submitted_by,
    postgresql_where=text("submitted_by <> ''"),
)

dataset_rows: Final = Table(
    "dataset_rows",
    metadata,
    Column(
        "dataset_id",
        Uuid,
        ForeignKey(f"{SCHEMA}.datasets.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("row_no", Integer, primary_key=True),
    Column("cells", ARRAY(Text), nullable=False),
)

call_cache: Final = Table(
    "call_cache",
    metadata,
    Column("key", LargeBinary, primary_key=True),
    Column("answer", JSONB, nullable=False),
    Column("model", Text, nullable=False),
    _timestamp("created_at", is_now=True),
)
Index("call_cache_created_idx", call_cache.c.created_at)

# Ids of jobs that were deleted, for a while: who asks for one is told so.
deleted_jobs: Final = Table(
    "deleted_jobs",
    metadata,
    Column("id", Uuid, primary_key=True),
    _timestamp("deleted_at", is_now=True),
)
Index("deleted_jobs_deleted_idx", deleted_jobs.c.deleted_at)

usage: Final = Table(
    "usage",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _job_id(),
    Column("claim_no", BigInteger, nullable=False),
    Column("key", LargeBinary),
    Column("stage", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("calls", Integer, nullable=False, server_default="0"),
    Column("cached_calls", Integer, nullable=False, server_default="0"),
    Column("prompt_tokens", BigInteger, nullable=False, server_default="0"),
    Column("completion_tokens", BigInteger, nullable=False, server_default="0"),
    Column("cost", Numeric(18, 6), nullable=False, server_default="0"),
    _timestamp("created_at", is_now=True),
)
Index("usage_job_idx", usage.c.job_id)
# A call that was paid counts once for its claim, however often its write is repeated; beside these
# rows each claim has one for the answers of a stage that it found kept.
Index(
    "usage_call_idx",
    usage.c.job_id,
    usage.c.claim_no,
    usage.c.key,
    unique=True,
    postgresql_where=text("key is not null"),
)
Index(
    "usage_cached_idx",
    usage.c.job_id,
    usage.c.claim_no,
    usage.c.stage,
    usage.c.model,
    unique=True,
    postgresql_where=text("key is null"),
)

queues: Final = Table(
    "queues",
    metadata,
    Column("name", Text, primary_key=True),
    Column("is_paused", Boolean, nullable=False, server_default=text("false")),
    _timestamp("updated_at", is_now=True),
)

# What services can run, by their own word at their start, for jobs that are submitted by SQL. The
# default is the one that was so called last.
pipelines: Final = Table(
    "pipelines",
    metadata,
    Column("name", Text, primary_key=True),
    Column("max_attempts", Integer),
    Column("timeout_seconds", Double),
    Column("start_timeout_seconds", Double),
    Column("stall_seconds", Double),
    Column("memory_limit_bytes", BigInteger),
    Column("takes_dataset", Boolean, nullable=False, server_default=text("false")),
    _timestamp("defaulted_at"),
    _timestamp("announced_at", is_now=True),
)

# No index but the key: a heartbeat then stays a heap-only update.
nodes: Final = Table(
    "nodes",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("capacity", Integer, nullable=False),
    Column("lease_seconds", Double, nullable=False),
    Column("state", Text, nullable=False, server_default="active"),
    _timestamp("started_at", is_now=True),
    _timestamp("heartbeat_at", is_now=True),
    _timestamp("stopped_at"),
    _one_of("state", ["active", "draining", "stopped"]),
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0"},
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("sha256", LargeBinary, nullable=False, unique=True),
    Column("scopes", ARRAY(Text), nullable=False, server_default=_EMPTY_TEXTS),
    _timestamp("created_at", is_now=True),
    _timestamp("last_used_at"),
    _timestamp("revoked_at"),
    Column("max_pending_jobs", Integer),
    Column("max_pending_bytes", BigInteger),
)

webhooks: Final = Table(
    "webhooks",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("url", Text, nullable=False),
    Column("events", ARRAY(Text), nullable=False),
    Column("secret", Text, nullable=False),
    Column("is_active", Boolean, nullable=False, server_default=text("true")),
    Column("disabled_reason", Text),
    _timestamp("created_at", is_now=True),
)

# Secrets that were replaced: messages are signed with them, too, until those who verify have
# changed theirs.
webhook_secrets: Final = Table(
    "webhook_secrets",
    metadata,
    Column(
        "webhook_id",
        Uuid,
        ForeignKey(f"{SCHEMA}.webhooks.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("secret", Text, primary_key=True),
    _timestamp("valid_until", nullable=False),
)

webhook_deliveries: Final = Table(
    "webhook_deliveries",
    metadata,
    Column("id", Uuid, primary_key=True),
    _job_id(),
    Column("webhook_id", Uuid, ForeignKey(f"{SCHEMA}.webhooks.id", ondelete="CASCADE")),
    Column("url", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("status", Text, nullable=False, server_default="pending"),
    Column("attempt", Integer, nullable=False, server_default="0"),
    _timestamp("next_at", is_now=True),
    _timestamp("delivered_at"),
    Column("last_status_code", Integer),
    Column("last_error", Text),
    _timestamp("created_at", is_now=True),
    _one_of("status", ["pending", "delivered", "failed"]),
)
Index(
    "webhook_deliveries_due_idx",
    webhook_deliveries.c.webhook_id,
    webhook_deliveries.c.next_at,
    postgresql_where=text("status = 'pending'"),
)
Index(
    "webhook_deliveries_webhook_idx",
    webhook_deliveries.c.webhook_id,
    webhook_deliveries.c.created_at,
    webhook_deliveries.c.id,
)
Index("webhook_deliveries_job_idx", webhook_deliveries.c.job_id)
