"""Old secrets of webhooks, valid for a while.

Revision: 0015
Follows: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhook_secrets",
        sa.Column("webhook_id", sa.Uuid(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("valid_until", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["webhook_id"],
            ["haulage.webhooks.id"],
            name=op.f("webhook_secrets_webhook_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("webhook_id", "secret", name=op.f("webhook_secrets_pkey")),
        schema="haulage",
    )


def downgrade() -> None:
    """Endpoints go on with the secrets that they have now; old ones end at once."""
    op.drop_table("webhook_secrets", schema="haulage")
