"""Indexes for lists and for retention, on tables that may be large.

Revision: 0006
Follows: 0005
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_NEW = {
    "jobs_ended_idx": "haulage.jobs (status, finished_at) where finished_at is not null",
    "jobs_not_completed_idx": "haulage.jobs (id) where status <> 'completed'",
    "jobs_dataset_idx": "haulage.jobs (dataset_id) where dataset_id is not null",
    "job_payloads_dataset_idx": "haulage.job_payloads ((payload #>> '{dataset,id}'))"
    " where payload ? 'dataset'",
    "call_cache_created_idx": "haulage.call_cache (created_at)",
}
_OLD = {"jobs_finished_idx": "haulage.jobs (finished_at) where finished_at is not null"}


def upgrade() -> None:
    _replace(_OLD, _NEW)


def downgrade() -> None:
    _replace(_NEW, _OLD)


def _replace(former: dict[str, str], wanted: dict[str, str]) -> None:
    """Build what is wanted without keeping anybody from reading or writing, then drop the rest.

    A build that was killed leaves an invalid index under its name, so each begins with a drop.
    """
    with op.get_context().autocommit_block():
        # A build waits for transactions that were there before it, and nobody waits behind it.
        op.execute("set lock_timeout = '60s'")
        for name, what in wanted.items():
            op.execute(f"drop index concurrently if exists haulage.{name}")
            op.execute(f"create index concurrently {name} on {what}")
        for name in former:
            op.execute(f"drop index concurrently if exists haulage.{name}")
        op.execute("set lock_timeout = '3s'")
