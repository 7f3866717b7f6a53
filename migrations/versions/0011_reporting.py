"""Views for people who report in SQL, in a schema of their own.

Revision: 0011
Follows: 0010
"""

from pathlib import Path

from alembic import op
from sqlalchemy import text

from app.db.definitions import statements

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

FROZEN = Path(__file__).parents[1] / "frozen" / "0011_reporting.sql"


def upgrade() -> None:
    op.execute("create schema if not exists reporting")
    for statement in statements(FROZEN.read_text("utf-8")):
        op.execute(text(statement.replace(":", r"\:")))


def downgrade() -> None:
    """Views keep no data.

    The schema stays where others have put something into it.
    """
    for statement in reversed(list(statements(FROZEN.read_text("utf-8")))):
        if statement.startswith("create view "):
            op.execute(f"drop view {statement.split()[2]}")
    op.execute(
        "do $$ begin drop schema reporting;"
        " exception when dependent_objects_still_exist then null; end $$"
    )
