"""Keys of paid calls in their usage, by which a repeated write is known; datasets by their file.

Revision: 0004
Follows: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Without a default: a change of the catalogue only. No earlier program writes to this table, so
    # the indexes are built over nothing.
    op.add_column("usage", sa.Column("key", sa.LargeBinary(), nullable=True), schema="haulage")
    op.create_index(
        "usage_call_idx",
        "usage",
        ["job_id", "claim_no", "key"],
        unique=True,
        schema="haulage",
        postgresql_where=sa.text("key is not null"),
    )
    op.create_index(
        "usage_cached_idx",
        "usage",
        ["job_id", "claim_no", "stage", "model"],
        unique=True,
        schema="haulage",
        postgresql_where=sa.text("key is null"),
    )
    # Uploads are few beside their rows; writes of them wait for as long as it takes.
    op.create_index("datasets_sha256_idx", "datasets", ["sha256", "id"], schema="haulage")


def downgrade() -> None:
    """Loses the keys, and which call used what.

    The calls of a claim, stage and model become one row with their sums. So what was paid stays
    counted, and a later upgrade finds one row for each as its index wants it. A call whose write is
    repeated after that counts twice.
    """
    op.drop_index("datasets_sha256_idx", table_name="datasets", schema="haulage")
    op.drop_index(
        "usage_cached_idx",
        table_name="usage",
        schema="haulage",
        postgresql_where=sa.text("key is null"),
    )
    op.drop_index(
        "usage_call_idx",
        table_name="usage",
        schema="haulage",
        postgresql_where=sa.text("key is not null"),
    )
    op.drop_column("usage", "key", schema="haulage")
    op.execute(
        """
        with taken as (delete from haulage.usage returning *)
        insert into haulage.usage (
            job_id, claim_no, stage, model, calls, cached_calls, prompt_tokens, completion_tokens,
            cost, created_at
        )
        select
            job_id, claim_no, stage, model, sum(calls), sum(cached_calls), sum(prompt_tokens),
            sum(completion_tokens), sum(cost), min(created_at)
        from taken
        group by job_id, claim_no, stage, model
        """
    )
