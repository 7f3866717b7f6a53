"""An index of the results that are thematic analyses, which views about these go by.

Revision: 0012
Follows: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


COLUMNS = ("job_id", "claim_no", "result", "created_at")


def upgrade() -> None:
    # ANALYZE asks the index's question of every row of its sample: 300 rows instead of 30,000, of
    # which each may have megabytes to unpack. Plans need to know no more than that ids are unique.
    _keep_statistics(1)
    # Built beside the writers, without the time-out of other steps; see 0008.
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = 0")
        op.execute("drop index concurrently if exists haulage.job_results_analyses_idx")
        op.create_index(
            "job_results_analyses_idx",
            "job_results",
            ["job_id"],
            schema="haulage",
            postgresql_where=sa.text("haulage.is_analysis(result)"),
            postgresql_concurrently=True,
        )
        op.execute("set lock_timeout = '3s'")


def downgrade() -> None:
    _keep_statistics(-1)
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = 0")
        op.execute("drop index concurrently if exists haulage.job_results_analyses_idx")
        op.execute("set lock_timeout = '3s'")


def _keep_statistics(target: int) -> None:
    changes = ", ".join(f"alter column {name} set statistics {target}" for name in COLUMNS)
    op.execute(f"alter table haulage.job_results {changes}")
