"""Webhook endpoints, and the endpoint of each delivery.

Revision: 0009
Follows: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("webhooks_pkey")),
        schema="haulage",
    )
    # No earlier program writes deliveries: what follows is done over an empty table.
    op.add_column(
        "webhook_deliveries", sa.Column("webhook_id", sa.Uuid(), nullable=True), schema="haulage"
    )
    op.create_foreign_key(
        op.f("webhook_deliveries_webhook_id_fkey"),
        "webhook_deliveries",
        "webhooks",
        ["webhook_id"],
        ["id"],
        source_schema="haulage",
        referent_schema="haulage",
        ondelete="CASCADE",
    )
    op.drop_index(
        "webhook_deliveries_due_idx",
        table_name="webhook_deliveries",
        schema="haulage",
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "webhook_deliveries_due_idx",
        "webhook_deliveries",
        ["webhook_id", "next_at"],
        schema="haulage",
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "webhook_deliveries_webhook_idx",
        "webhook_deliveries",
        ["webhook_id", "created_at", "id"],
        schema="haulage",
    )


def downgrade() -> None:
    """Loses the endpoints with their secrets; deliveries stay as a record of what went where."""
    op.drop_index(
        "webhook_deliveries_webhook_idx", table_name="webhook_deliveries", schema="haulage"
    )
    op.drop_index(
        "webhook_deliveries_due_idx",
        table_name="webhook_deliveries",
        schema="haulage",
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "webhook_deliveries_due_idx",
        "webhook_deliveries",
        ["next_at"],
        schema="haulage",
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.drop_constraint(
        op.f("webhook_deliveries_webhook_id_fkey"),
        "webhook_deliveries",
        schema="haulage",
        type_="foreignkey",
    )
    op.drop_column("webhook_deliveries", "webhook_id", schema="haulage")
    op.drop_table("webhooks", schema="haulage")
