"""An index by which claims pass paused queues over.

Revision: 0010
Follows: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Built beside the writers, without the time-out of other steps; see 0008.
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = 0")
        op.execute("drop index concurrently if exists haulage.jobs_queue_idx")
        op.create_index(
            "jobs_queue_idx",
            "jobs",
            ["queue", sa.text("priority desc"), "run_at", "id"],
            schema="haulage",
            postgresql_where=sa.text("status = 'pending'"),
            postgresql_concurrently=True,
        )
        op.execute("set lock_timeout = '3s'")


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = 0")
        op.execute("drop index concurrently if exists haulage.jobs_queue_idx")
        op.execute("set lock_timeout = '3s'")
