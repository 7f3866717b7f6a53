"""A script as people write it: no main guard, everything at import."""

import uvicorn

from app.main import create_app

print("script begins", flush=True)  # noqa: T201
uvicorn.run(create_app(), port=0)
