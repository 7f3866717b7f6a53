"""An index by which the datasets of one API key are counted, and old secrets of webhooks.

Revision: 0014
Follows: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # First, since what follows is undone where it fails. Built beside the writers; see 0008.
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = 0")
        op.execute("drop index concurrently if exists haulage.datasets_submitter_idx")
        op.create_index(
            "datasets_submitter_idx",
            "datasets",
            ["submitted_by"],
            schema="haulage",
            postgresql_where=sa.text("submitted_by <> ''"),
            postgresql_concurrently=True,
        )
        op.execute("set lock_timeout = '3s'")
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
    # Endpoints go on with the secrets that they have now; old ones end at once.
    op.drop_table("webhook_secrets", schema="haulage")
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = 0")
        op.execute("drop index concurrently if exists haulage.datasets_submitter_idx")
        op.execute("set lock_timeout = '3s'")
