"""`haulage serve`, `api` and `worker`: one process of Haulage each."""

from typing import Any

import click

from app.config import Settings, load_settings

_HOST = click.option("--host", help="Address to listen on (HAULAGE_HOST).")
_PORT = click.option("--port", type=int, help="Port, 0 for a free one (HAULAGE_PORT).")
_JOBS = click.option(
    "--jobs", type=int, help="Jobs that run at once (HAULAGE_MAX_CONCURRENT_JOBS)."
)


@click.command()
@_HOST
@_PORT
@_JOBS
@click.option("--until-stdin-ends", is_flag=True, hidden=True)
@click.option("--llm-without-key", is_flag=True, hidden=True)
def serve(
    host: str | None,
    port: int | None,
    jobs: int | None,
    *,
    until_stdin_ends: bool,
    llm_without_key: bool,
) -> None:
    """Run API and scheduler in one process.

    Without HAULAGE_DATABASE_URL it starts the bundled PostgreSQL and upgrades its schema.
    """
    from app.main import run

    settings = _settings(host=host, port=port, max_concurrent_jobs=jobs)
    if llm_without_key:
        settings = settings.model_copy(update={"llm_api_key_env": None})
    run("serve", settings, on_ready=_announce, ends_with_stdin=until_stdin_ends)


@click.command()
@_HOST
@_PORT
def api(host: str | None, port: int | None) -> None:
    """Run the API alone: it accepts jobs, which workers on the same database run."""
    from app.main import run

    run("api", _settings(host=host, port=port), on_ready=_announce)


@click.command()
@_JOBS
def worker(jobs: int | None) -> None:
    """Run the scheduler alone: it claims jobs and runs each in its own process."""
    from app.main import run

    run("worker", _settings(max_concurrent_jobs=jobs))


def _settings(**overrides: Any) -> Settings:
    return load_settings(overrides)


def _announce(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    click.echo(f"Haulage is ready at {url} (interactive documentation: {url}/docs)")
    click.echo("Submit a job:")
    click.echo(
        f"  curl -s {url}/enqueue -H 'content-type: application/json' "
        """-d '{"pipeline": "demo-sleep", "payload": {"seconds": 5}}'"""
    )
