"""Numbers of log lines, by which a repeated write of them is known.

Revision: 0003
Follows: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Constant defaults: changes of the catalogue only, no row is rewritten. Lines of before and of
    # workers that run an earlier version have the number 0.
    op.add_column(
        "job_logs",
        sa.Column("line_no", sa.Integer(), server_default=sa.text("0"), nullable=False),
        schema="haulage",
    )
    op.add_column(
        "job_attempts",
        sa.Column("last_line_no", sa.Integer(), server_default=sa.text("0"), nullable=False),
        schema="haulage",
    )


def downgrade() -> None:
    """Loses the numbers only: the lines keep their order by id."""
    op.drop_column("job_attempts", "last_line_no", schema="haulage")
    op.drop_column("job_logs", "line_no", schema="haulage")
