"""Examples for the description of the API, of schemas whose models have none at hand.

Pages of such things are made up of them.
"""

from typing import Any, Final

_JOB: Final = "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a11"
_NODE: Final = "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a12"
_WEBHOOK: Final[dict[str, Any]] = {
    "id": "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a33",
    "url": "https://app.example/hooks",
    "events": ["job.completed", "job.failed"],
    "is_active": True,
    "disabled_reason": None,
    "created_at": "2026-11-30T09:00:00Z",
}

EXAMPLES: Final[dict[str, Any]] = {
    "JobResponse": {
        "id": _JOB,
        "status": "running",
        "pipeline": "thematic",
        "queue": "default",
        "priority": 0,
        "attempt": 1,
        "max_attempts": 3,
        "progress": {"fraction": 0.4, "stage": "embed", "message": "1,200 of 3,000"},
        "milestones": [
            {
                "stage": "embed",
                "fraction": 0.2,
                "message": None,
                "attempt": 1,
                "at": "2026-11-30T09:00:03Z",
            }
        ],
        "created_at": "2026-11-30T09:00:00Z",
        "run_at": "2026-11-30T09:00:00Z",
        "started_at": "2026-11-30T09:00:01Z",
        "finished_at": None,
        "error": None,
        "node_id": _NODE,
        "pid": 4711,
        "cancel_requested_at": None,
        "batch_id": None,
        "submitted_by": "",
        "timeout_seconds": 3600.0,
        "start_timeout_seconds": None,
        "stall_seconds": None,
        "memory_limit_bytes": None,
        "tags": ["survey-7"],
        "metadata": {"customer": "c-17"},
    },
    "AttemptResponse": {
        "claim_no": 1,
        "attempt": 1,
        "node_id": _NODE,
        "pid": 4711,
        "started_at": "2026-11-30T09:00:01Z",
        "ended_at": "2026-11-30T09:02:11Z",
        "outcome": "failed",
        "cause": "exception",
        "exit_code": None,
        "signal": None,
        "error_class": "LLMError",
        "error_message": "the model does not answer",
        "traceback": None,
        "peak_memory_bytes": 268_435_456,
        "cpu_seconds": 12.5,
    },
    "DatasetSummaryResponse": {
        "id": "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a22",
        "name": "survey.csv",
        "row_count": 812,
        "column_count": 4,
        "created_at": "2026-11-30T09:30:00Z",
    },
    "DeliveryResponse": {
        "id": "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a44",
        "webhook_id": _WEBHOOK["id"],
        "job_id": _JOB,
        "event": "job.completed",
        "status": "pending",
        "attempt": 1,
        "next_at": "2026-11-30T10:13:49Z",
        "delivered_at": None,
        "last_status_code": 502,
        "last_error": None,
        "created_at": "2026-11-30T10:13:43Z",
    },
    "WebhookResponse": _WEBHOOK,
    "NewWebhookResponse": {**_WEBHOOK, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
    "SecretResponse": {
        "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "old_valid_until": "2026-12-01T09:00:00Z",
    },
    "PipelineResponse": {
        "name": "demo-sleep",
        "is_default": False,
        "description": "Sleeps and reports progress.",
        "defaults": {
            "max_attempts": 1,
            "timeout_seconds": None,
            "start_timeout_seconds": None,
            "stall_seconds": None,
            "memory_limit_bytes": None,
        },
        "payload_schema": {"type": "object", "properties": {"seconds": {"type": "number"}}},
    },
    "ProblemResponse": {
        "type": "urn:haulage:problem:invalid-input",
        "title": "Unprocessable Entity",
        "status": 422,
        "detail": "/priority: Input should be less than or equal to 32767",
        "instance": "/jobs",
        "errors": [
            {"pointer": "/priority", "detail": "Input should be less than or equal to 32767"}
        ],
    },
}


def add_examples(schemas: dict[str, Any]) -> None:
    """Give the schemas of a document their examples, pages one of an item of theirs."""
    for name, example in EXAMPLES.items():
        schemas[name].setdefault("examples", [example])
    for schema in schemas.values():
        properties = schema.get("properties", {})
        item = properties.get("items", {}).get("items", {}).get("$ref", "").split("/")[-1]
        examples = schemas.get(item, {}).get("examples")
        if "examples" not in schema and examples:
            page = {"items": examples[:1]}
            if "next" in properties:
                page["next"] = None
            schema["examples"] = [page]
