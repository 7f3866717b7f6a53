"""Ids of deleted jobs, kept for a while.

Revision: 0005
Follows: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deleted_jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column(
            "deleted_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("deleted_jobs_pkey")),
        schema="haulage",
    )
    op.create_index("deleted_jobs_deleted_idx", "deleted_jobs", ["deleted_at"], schema="haulage")


def downgrade() -> None:
    """Deleted jobs answer like those that never were."""
    op.drop_table("deleted_jobs", schema="haulage")
