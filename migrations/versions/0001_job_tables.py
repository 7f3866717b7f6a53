"""Job tables: jobs, what lies beside them, and the nodes that run them.

Revision: 0001
Follows: nothing
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column(
            "scopes", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("api_keys_pkey")),
        sa.UniqueConstraint("sha256", name=op.f("api_keys_sha256_key")),
        schema="haulage",
    )
    op.create_table(
        "call_cache",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("answer", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("call_cache_pkey")),
        schema="haulage",
    )
    op.create_table(
        "datasets",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column(
            "detected",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("columns", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("row_count", sa.Integer(), nullable=False),
        sa.Column("submitted_by", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("datasets_pkey")),
        schema="haulage",
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("capacity", sa.Integer(), nullable=False),
        sa.Column("lease_seconds", sa.Double(), nullable=False),
        sa.Column("state", sa.Text(), server_default="active", nullable=False),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "heartbeat_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("stopped_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state in ('active', 'draining', 'stopped')", name=op.f("nodes_state_check")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("nodes_pkey")),
        schema="haulage",
        postgresql_with={"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0"},
    )
    op.create_table(
        "queues",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("is_paused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("queues_pkey")),
        schema="haulage",
    )
    op.create_table(
        "dataset_rows",
        sa.Column("dataset_id", sa.Uuid(), nullable=False),
        sa.Column("row_no", sa.Integer(), nullable=False),
        sa.Column("cells", sa.ARRAY(sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset_id"],
            ["haulage.datasets.id"],
            name=op.f("dataset_rows_dataset_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("dataset_id", "row_no", name=op.f("dataset_rows_pkey")),
        schema="haulage",
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), server_default="default", nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column(
            "run_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_attempts", sa.Integer(), server_default="1", nullable=False),
        sa.Column("node_losses", sa.Integer(), server_default="0", nullable=False),
        sa.Column("claim_no", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("node_id", sa.Uuid(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
        sa.Column("memory_limit_bytes", sa.BigInteger(), nullable=True),
        sa.Column("stall_seconds", sa.Double(), nullable=True),
        sa.Column("batch_id", sa.Uuid(), nullable=True),
        sa.Column("dataset_id", sa.Uuid(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("payload_hash", sa.LargeBinary(), nullable=True),
        sa.Column("submitted_by", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "tags", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False
        ),
        sa.Column(
            "metadata",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "status <> 'running' or node_id is not null", name=op.f("jobs_running_has_node_check")
        ),
        sa.CheckConstraint(
            "status in ('pending', 'running', 'completed', 'failed', 'cancelled')",
            name=op.f("jobs_status_check"),
        ),
        sa.CheckConstraint("attempt >= 0 and max_attempts >= 1", name=op.f("jobs_attempts_check")),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["haulage.datasets.id"], name=op.f("jobs_dataset_id_fkey")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("jobs_pkey")),
        schema="haulage",
        postgresql_with={
            "fillfactor": "85",
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "5000",
            "autovacuum_analyze_scale_factor": "0",
            "autovacuum_analyze_threshold": "20000",
            "autovacuum_vacuum_cost_delay": "0",
        },
    )
    op.create_index(
        "jobs_batch_idx",
        "jobs",
        ["batch_id"],
        unique=False,
        schema="haulage",
        postgresql_where=sa.text("batch_id is not null"),
    )
    op.create_index(
        "jobs_claim_idx",
        "jobs",
        [sa.literal_column("priority DESC"), "run_at", "id"],
        unique=False,
        schema="haulage",
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "jobs_finished_idx",
        "jobs",
        ["finished_at"],
        unique=False,
        schema="haulage",
        postgresql_where=sa.text("finished_at is not null"),
    )
    op.create_index(
        "jobs_idempotency_idx",
        "jobs",
        ["submitted_by", "idempotency_key"],
        unique=True,
        schema="haulage",
        postgresql_where=sa.text("idempotency_key is not null"),
    )
    op.create_index(
        "jobs_running_idx",
        "jobs",
        ["node_id"],
        unique=False,
        schema="haulage",
        postgresql_where=sa.text("status = 'running'"),
    )
    op.create_table(
        "job_attempts",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("claim_no", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.Uuid(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("signal", sa.Integer(), nullable=True),
        sa.Column("error_class", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("traceback", sa.Text(), nullable=True),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("cpu_seconds", sa.Double(), nullable=True),
        sa.Column("progress_fraction", sa.Double(), nullable=True),
        sa.Column("progress_stage", sa.Text(), nullable=True),
        sa.Column("progress_message", sa.Text(), nullable=True),
        sa.Column("progress_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "outcome in ('completed', 'failed', 'cancelled', 'released', 'lost')",
            name=op.f("job_attempts_outcome_check"),
        ),
        sa.CheckConstraint(
            "(ended_at is null) = (outcome is null)",
            name=op.f("job_attempts_ended_has_outcome_check"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["haulage.jobs.id"],
            name=op.f("job_attempts_job_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "claim_no", name=op.f("job_attempts_pkey")),
        schema="haulage",
        postgresql_with={"fillfactor": "85"},
    )
    op.create_table(
        "job_checkpoints",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("claim_no", sa.BigInteger(), nullable=False),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "saved_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["haulage.jobs.id"],
            name=op.f("job_checkpoints_job_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "stage", name=op.f("job_checkpoints_pkey")),
        schema="haulage",
    )
    op.create_table(
        "job_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("claim_no", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.Column("fraction", sa.Double(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint("kind in ('status', 'milestone')", name=op.f("job_events_kind_check")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["haulage.jobs.id"], name=op.f("job_events_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("job_events_pkey")),
        schema="haulage",
    )
    op.create_index(
        "job_events_job_idx", "job_events", ["job_id", "id"], unique=False, schema="haulage"
    )
    op.create_table(
        "job_logs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("claim_no", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["haulage.jobs.id"], name=op.f("job_logs_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("job_logs_pkey")),
        schema="haulage",
    )
    op.create_index(
        "job_logs_job_idx", "job_logs", ["job_id", "id"], unique=False, schema="haulage"
    )
    op.create_table(
        "job_payloads",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("payload", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["haulage.jobs.id"],
            name=op.f("job_payloads_job_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("job_payloads_pkey")),
        schema="haulage",
    )
    op.create_table(
        "job_results",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("claim_no", sa.BigInteger(), nullable=False),
        sa.Column("result", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["haulage.jobs.id"],
            name=op.f("job_results_job_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("job_results_pkey")),
        schema="haulage",
    )
    op.create_table(
        "usage",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("claim_no", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("calls", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cached_calls", sa.Integer(), server_default="0", nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost", sa.Numeric(precision=18, scale=6), server_default="0", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["haulage.jobs.id"], name=op.f("usage_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("usage_pkey")),
        schema="haulage",
    )
    op.create_index("usage_job_idx", "usage", ["job_id"], unique=False, schema="haulage")
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "next_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_status_code", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "status in ('pending', 'delivered', 'failed')",
            name=op.f("webhook_deliveries_status_check"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["haulage.jobs.id"],
            name=op.f("webhook_deliveries_job_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("webhook_deliveries_pkey")),
        schema="haulage",
    )
    op.create_index(
        "webhook_deliveries_due_idx",
        "webhook_deliveries",
        ["next_at"],
        unique=False,
        schema="haulage",
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "webhook_deliveries_job_idx",
        "webhook_deliveries",
        ["job_id"],
        unique=False,
        schema="haulage",
    )


def downgrade() -> None:
    """Loses everything: jobs with their results and logs, datasets, kept calls, nodes, API keys."""
    op.drop_index("webhook_deliveries_job_idx", table_name="webhook_deliveries", schema="haulage")
    op.drop_index(
        "webhook_deliveries_due_idx",
        table_name="webhook_deliveries",
        schema="haulage",
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.drop_table("webhook_deliveries", schema="haulage")
    op.drop_index("usage_job_idx", table_name="usage", schema="haulage")
    op.drop_table("usage", schema="haulage")
    op.drop_table("job_results", schema="haulage")
    op.drop_table("job_payloads", schema="haulage")
    op.drop_index("job_logs_job_idx", table_name="job_logs", schema="haulage")
    op.drop_table("job_logs", schema="haulage")
    op.drop_index("job_events_job_idx", table_name="job_events", schema="haulage")
    op.drop_table("job_events", schema="haulage")
    op.drop_table("job_checkpoints", schema="haulage")
    op.drop_table("job_attempts", schema="haulage")
    op.drop_index(
        "jobs_running_idx",
        table_name="jobs",
        schema="haulage",
        postgresql_where=sa.text("status = 'running'"),
    )
    op.drop_index(
        "jobs_idempotency_idx",
        table_name="jobs",
        schema="haulage",
        postgresql_where=sa.text("idempotency_key is not null"),
    )
    op.drop_index(
        "jobs_finished_idx",
        table_name="jobs",
        schema="haulage",
        postgresql_where=sa.text("finished_at is not null"),
    )
    op.drop_index(
        "jobs_claim_idx",
        table_name="jobs",
        schema="haulage",
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.drop_index(
        "jobs_batch_idx",
        table_name="jobs",
        schema="haulage",
        postgresql_where=sa.text("batch_id is not null"),
    )
    op.drop_table("jobs", schema="haulage")
    op.drop_table("dataset_rows", schema="haulage")
    op.drop_table("queues", schema="haulage")
    op.drop_table("nodes", schema="haulage")
    op.drop_table("datasets", schema="haulage")
    op.drop_table("call_cache", schema="haulage")
    op.drop_table("api_keys", schema="haulage")
