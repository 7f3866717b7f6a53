"""A job's limit for importing and constructing its pipeline.

Revision: 0002
Follows: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Without a default: a change of the catalogue only, no row is rewritten.
    op.add_column(
        "jobs", sa.Column("start_timeout_seconds", sa.Double(), nullable=True), schema="haulage"
    )


def downgrade() -> None:
    """Loses the limits of jobs that have one of their own; the node's default holds again."""
    op.drop_column("jobs", "start_timeout_seconds", schema="haulage")
