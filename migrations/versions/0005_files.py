"""Which jobs name a dataset, found without looking through all jobs when it is to be removed.

Revision: 0005
Follows: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Jobs may be many, and go on meanwhile. What a broken try left would never be used.
    with op.get_context().autocommit_block():
        op.drop_index(
            "jobs_dataset_idx",
            table_name="jobs",
            schema="haulage",
            if_exists=True,
            postgresql_concurrently=True,
        )
        op.create_index(
            "jobs_dataset_idx",
            "jobs",
            ["dataset_id"],
            schema="haulage",
            postgresql_where=sa.text("dataset_id is not null"),
            postgresql_concurrently=True,
        )


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.drop_index(
            "jobs_dataset_idx",
            table_name="jobs",
            schema="haulage",
            if_exists=True,
            postgresql_concurrently=True,
        )
