"""Views for people who report in SQL, in a schema of their own.

Revision: 0011
Follows: 0010
"""

import re
from pathlib import Path

from alembic import op
from sqlalchemy import text

from app.db.definitions import statements

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

MADE = re.compile(r"^create (or replace )?(?P<kind>view|function) (?P<name>[\w.]+)", re.MULTILINE)
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
        if made := MADE.search(statement):
            op.execute(f"drop {made['kind']} {made['name']}")
    op.execute(
        "do $$ begin drop schema reporting;"
        " exception when dependent_objects_still_exist then null; end $$"
    )
