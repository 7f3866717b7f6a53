"""Reading files of answers: encodings, delimiters, workbooks, header rows, bounds.

`read_table` gives the rows of a file and what was detected about it; `read_answers` also finds the
columns that hold the answers and their ids. Files are data: nothing in them is ever executed.
"""

from app.datasets.answers import AnswerTable, read_answers
from app.datasets.tables import Detected, Table, read_table

__all__ = ["AnswerTable", "Detected", "Table", "read_answers", "read_table"]
