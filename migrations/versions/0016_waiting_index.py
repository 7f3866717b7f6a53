"""The index of each queue's waiting jobs tells their pipeline and claims too.

Reports on what waits then read it alone, and no row of the table.

Revision: 0016
Follows: 0015
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_NEW = {
    "jobs_waiting_idx": "haulage.jobs (queue, priority desc, run_at, id)"
    " include (pipeline, claim_no) where status = 'pending'",
}
_OLD = {
    "jobs_queue_idx": "haulage.jobs (queue, priority desc, run_at, id) where status = 'pending'",
}


def upgrade() -> None:
    _replace(_OLD, _NEW)


def downgrade() -> None:
    _replace(_NEW, _OLD)


def _replace(former: dict[str, str], wanted: dict[str, str]) -> None:
    """Build one beside the writers, then drop the other; see 0006.

    Claims beside paused queues have one of them at any time, unless a step is broken off between.
    """
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = '60s'")
        for name, what in wanted.items():
            op.execute(f"drop index concurrently if exists haulage.{name}")
            op.execute(f"create index concurrently {name} on {what}")
        for name in former:
            op.execute(f"drop index concurrently if exists haulage.{name}")
        op.execute("set lock_timeout = '3s'")
