"""Caps of an API key's own.

Revision: 0007
Follows: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Without defaults: changes of the catalogue only.
    op.add_column(
        "api_keys", sa.Column("max_pending_jobs", sa.Integer(), nullable=True), schema="haulage"
    )
    op.add_column(
        "api_keys", sa.Column("max_pending_bytes", sa.BigInteger(), nullable=True), schema="haulage"
    )


def downgrade() -> None:
    """Keys fall back to the caps of the settings."""
    op.drop_column("api_keys", "max_pending_bytes", schema="haulage")
    op.drop_column("api_keys", "max_pending_jobs", schema="haulage")
