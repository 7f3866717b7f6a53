"""An index by which the pending jobs of one API key are counted.

Revision: 0008
Follows: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The table may be large and is in use: built beside the writers. That waits for transactions
    # which began before, so without the time-out of other steps; an attempt that was broken off
    # leaves an unusable index, which goes first.
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = 0")
        op.execute("drop index concurrently if exists haulage.jobs_submitter_idx")
        op.create_index(
            "jobs_submitter_idx",
            "jobs",
            ["submitted_by"],
            schema="haulage",
            postgresql_where=sa.text("status = 'pending' and submitted_by <> ''"),
            postgresql_concurrently=True,
        )
        op.execute("set lock_timeout = '3s'")


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = 0")
        op.execute("drop index concurrently if exists haulage.jobs_submitter_idx")
        op.execute("set lock_timeout = '3s'")
