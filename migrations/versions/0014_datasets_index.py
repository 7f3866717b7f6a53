"""An index by which the datasets of one API key are counted.

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
    # Built beside the writers, without the time-out of other steps; see 0008.
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


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = 0")
        op.execute("drop index concurrently if exists haulage.datasets_submitter_idx")
        op.execute("set lock_timeout = '3s'")
