"""Jobs from SQL: what services can run, and the function that submits.

Revision: 0013
Follows: 0012
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

from app.db.definitions import statements

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

FROZEN = Path(__file__).parents[1] / "frozen" / "0013_functions.sql"


def upgrade() -> None:
    op.create_table(
        "pipelines",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=True),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
        sa.Column("start_timeout_seconds", sa.Double(), nullable=True),
        sa.Column("stall_seconds", sa.Double(), nullable=True),
        sa.Column("memory_limit_bytes", sa.BigInteger(), nullable=True),
        sa.Column("takes_dataset", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("defaulted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "announced_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pipelines_pkey")),
        schema="haulage",
    )
    for statement in statements(FROZEN.read_text("utf-8")):
        op.execute(sa.text(statement.replace(":", r"\:")))


def downgrade() -> None:
    """Jobs come by HTTP alone; services announce their pipelines anew at every start."""
    op.execute("drop function haulage.enqueue")
    op.drop_table("pipelines", schema="haulage")
