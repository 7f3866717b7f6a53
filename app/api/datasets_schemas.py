"""Datasets as the API tells of them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from app.domain.sharing import Dataset

_EXAMPLE: Final[dict[str, Any]] = {
    "id": "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a22",
    "name": "survey.csv",
    "created_at": "2026-11-30T09:30:00Z",
    "row_count": 2,
    "columns": [
        {"name": "id", "question": None},
        {"name": "q1", "question": "What could we do better?"},
    ],
    "text_column": "q1",
    "id_column": "id",
    "format": "csv",
    "encoding": "utf-8",
    "delimiter": ";",
    "header_rows": 2,
    "source": "plain",
    "sheet": None,
    "dropped_columns": ["e-mail"],
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
}


class ColumnResponse(BaseModel):
    """A column of a dataset."""

    name: str
    question: str | None = Field(description="What was asked there, where the file tells.")


class DatasetResponse(BaseModel):
    """A stored table, and what was found out about the file that it came from."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    id: str
    name: str
    created_at: datetime | None
    row_count: int
    columns: list[ColumnResponse]
    text_column: str | None = Field(
        description="Where the answers most likely are; a job may name another one."
    )
    id_column: str | None = Field(description="Where their ids most likely are.")
    format: str | None = Field(description='"csv", "json", "jsonl" or "workbook".')
    encoding: str | None = Field(description="Of a text; null for a workbook.")
    delimiter: str | None = Field(description="Null for a single column, JSON and workbooks.")
    header_rows: int | None = Field(description="Rows above the first answer.")
    source: str | None = Field(
        description='"qualtrics", "surveymonkey", "google-forms" or "plain".'
    )
    sheet: str | None = Field(description="Of a workbook.")
    dropped_columns: list[str] = Field(
        description="Columns that identify people; they were left out."
    )
    sha256: str = Field(description="Of the file.")

    @classmethod
    def of(cls, dataset: Dataset) -> "DatasetResponse":
        """The dataset as the API tells it."""
        return cls(**_facts(dataset))


class UploadResponse(DatasetResponse):
    """The dataset that was stored, and its first rows."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{**_EXAMPLE, "preview": [["1", "Shorter waits"], ["2", "Nothing"]]}]
        }
    )

    preview: list[list[str]] = Field(
        description="At most 20 rows; of each cell at most 200 characters."
    )

    @classmethod
    def of_upload(cls, answer: Mapping[str, Any]) -> "UploadResponse":
        """What the intake answered."""
        fields = {key: value for key, value in answer.items() if key != "preview"}
        at = fields.pop("created_at")
        dataset = Dataset(**fields, created_at=at and datetime.fromisoformat(at))
        return cls(**_facts(dataset), preview=answer["preview"])


class DatasetSummaryResponse(BaseModel):
    """A dataset in a list."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    name: str
    row_count: int
    column_count: int
    created_at: datetime


class DatasetsPage(BaseModel):
    """Some datasets, the newest first."""

    items: list[DatasetSummaryResponse]
    next: str | None = Field(description="Where the list goes on, as in the header `Link`.")


class RowResponse(BaseModel):
    """A row of a dataset."""

    row: int = Field(description="Counted from 1.")
    cells: list[str] = Field(description="In the order of the columns.")


class RowsPage(BaseModel):
    """Some rows, in their order."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "columns": ["id", "q1"],
                    "items": [{"row": 1, "cells": ["1", "Shorter waits"]}],
                    "next": "/datasets/019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a22/rows?limit=1&after=1",
                }
            ]
        }
    )

    columns: list[str]
    items: list[RowResponse]
    next: str | None = Field(description="Where the list goes on, as in the header `Link`.")


def upload_form() -> dict[str, Any]:
    """The form of an upload as OpenAPI describes it."""
    text = {"type": "string"}
    return {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "additionalProperties": False,
                    "properties": {
                        "file": {
                            "type": "string",
                            "format": "binary",
                            "description": "CSV in its dialects, JSON list or lines, XLSX or ODS; "
                            "at most 64 MiB.",
                        },
                        "name": {
                            **text,
                            "minLength": 1,
                            "maxLength": 255,
                            "description": "Of the dataset; else the file's.",
                        },
                        "header_rows": {
                            "type": "integer",
                            "minimum": 0,
                            "maximum": 3,
                            "description": "Rows above the first answer; found out if not given.",
                        },
                        "sheet": {
                            **text,
                            "maxLength": 255,
                            "description": "Of a workbook; else the first visible one with rows.",
                        },
                        "encoding": {
                            **text,
                            "maxLength": 40,
                            "description": "Of a text, such as cp1250; found out if not given.",
                        },
                    },
                }
            }
        },
    }


def _facts(dataset: Dataset) -> dict[str, Any]:
    detected = dataset.detected
    questions = detected.get("questions") or {}
    named = ("text_column", "id_column", "format", "encoding", "delimiter", "header_rows")
    return {
        "id": dataset.id,
        "name": dataset.name,
        "created_at": dataset.created_at,
        "row_count": dataset.row_count,
        "columns": [
            ColumnResponse(name=name, question=questions.get(name)) for name in dataset.columns
        ],
        **{name: detected.get(name) for name in (*named, "source", "sheet")},
        "dropped_columns": list(detected.get("dropped_columns") or ()),
        "sha256": dataset.sha256,
    }
