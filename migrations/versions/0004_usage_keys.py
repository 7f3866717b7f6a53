"""Keys of paid calls in their usage, by which a repeated write of one is known.

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


def downgrade() -> None:
    # Loses the keys only: what was paid stays counted.
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
