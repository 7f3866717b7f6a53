"""The composition root: the only module that names concrete adapters and puts the parts together.

settings -> database (given, or bundled) -> schema -> adapters -> QueueManager, WebServer
"""

import asyncio
import contextlib
import functools
import gc
import ipaddress
import math
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Final, Literal, TypeVar

import uvicorn
from fastapi import FastAPI

from app.api.server import NoScheduler, WebServer
from app.config import PIPELINE, Settings, load_settings
from app.db import migrate
from app.db.interface import DBFactory, DBInterface
from app.db.opening import Database, open_database
from app.db.postgres.adapter import MAX_POOL_CONNECTIONS, PostgresJobsDB
from app.db.postgres.budget import connections_left
from app.db.urls import DatabaseURL
from app.domain.errors import ConfigurationError, HaulageError
from app.domain.jobs import Registration
from app.orchestrator.manager import QueueManager
from app.orchestrator.options import ManagerOptions
from app.pipelines.registry import is_built_in, load_registrations, with_defaults
from app.telemetry import Telemetry, configure_logging, default_telemetry
from app.worker.probe import PROBE_SECONDS, PipelineProbe

# Open connections get this long at shutdown; jobs have their own grace.
HTTP_GRACE_SECONDS: Final = 3
# Who submits gets an answer in this time, if need be that there is none; the scheduler tries again
# by itself. Workers, with large results to store, keep the adapter's own time.
HTTP_DATABASE_SECONDS: Final = 5.0
SCHEDULER_DATABASE_SECONDS: Final = 10.0

Role = Literal["serve", "api", "worker"]
_T = TypeVar("_T")


def ensure_schema(database: Database, settings: Settings, telemetry: Telemetry) -> None:
    """Upgrade the bundled database, or a given one where that is wished; refuse a misfit.

    Raises:
        SchemaMismatchError: naming the command that mends it.
    """
    found = migrate.state(database.url)
    if not found.is_ahead and (database.embedded is not None or settings.auto_migrate):
        migrate.upgrade(database.url, telemetry=telemetry)
        found = migrate.state(database.url)
    found.require_current()


def warn_of_few_connections(
    url: DatabaseURL, settings: Settings, role: Role, telemetry: Telemetry
) -> None:
    """Say so where the server has fewer connections left than this process may come to need.

    It would work all the same: workers wait for a connection, and submitters may be told to.
    """
    pool = MAX_POOL_CONNECTIONS + settings.notify
    # The scheduler's pool, LISTEN, the lease's own connection, and one for every worker.
    needed = 0 if role == "api" else pool + 2 + settings.max_concurrent_jobs
    needed += 0 if role == "worker" else pool
    left = connections_left(url)
    if left is not None and left < needed:
        telemetry.emit(
            "connections.overcommitted",
            needed=needed,
            left=left,
            remedy="lower HAULAGE_MAX_CONCURRENT_JOBS, or raise max_connections of the server "
            "(or the limit of its role or database)",
        )


def _make_db_impl(
    settings: Settings | None = None,
    url: DatabaseURL | None = None,
    command_timeout_seconds: float = SCHEDULER_DATABASE_SECONDS,
) -> DBInterface:
    """A `DBInterface` built from the settings; it connects at first use.

    Args:
        url: of the database that is open already, else the settings' one is opened.
    """
    settings = settings or load_settings()
    url = url or open_database(settings).url
    return PostgresJobsDB(
        url.asyncpg_dsn,
        listen_dsn=_listen_dsn(settings),
        default_pipeline=settings.pipeline,
        command_timeout_seconds=command_timeout_seconds,
        notify=settings.notify,
    )


def on_database(settings: Settings, work: Callable[[DBInterface], Awaitable[_T]]) -> _T:
    """What `work` returns, done on the settings' database by a process that only visits it."""

    async def visit(url: DatabaseURL) -> _T:
        db = _make_db_impl(settings.model_copy(update={"notify": False}), url)
        try:
            return await work(db)
        finally:
            await db.close()

    with open_database(settings) as database:
        return asyncio.run(visit(database.url))


def _worker_db_factory(url: DatabaseURL) -> DBFactory:
    # Picklable: the adapter's class with strings and numbers. One connection per worker.
    return functools.partial(
        PostgresJobsDB,
        url.asyncpg_dsn,
        application_name="haulage-worker",
        max_connections=1,
        notify=False,
    )


def _listen_dsn(settings: Settings) -> str | None:
    if settings.listen_database_url is None:
        return None
    text = settings.listen_database_url.get_secret_value()
    return DatabaseURL.parse(text, setting="HAULAGE_LISTEN_DATABASE_URL").asyncpg_dsn


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of one process, connected and not yet started.

    Attributes:
        database: None where the caller brought adapters of its own.
    """

    database: Database | None
    manager: QueueManager | None
    web: WebServer

    def close(self) -> None:
        """Give up the database; twice is harmless."""
        if self.database is not None:
            self.database.close()


def _build(settings: Settings, role: Role, db_factory: DBFactory | None = None) -> Service:
    telemetry = default_telemetry()
    pipelines = load_registrations(settings.pipelines, {PIPELINE: settings.thematic_arguments})
    if settings.pipeline not in pipelines:
        remedy = f"register it with HAULAGE_PIPELINES, or choose of {', '.join(sorted(pipelines))}"
        raise ConfigurationError("HAULAGE_PIPELINE", settings.pipeline, remedy)
    _listen_dsn(settings)  # refused before anything is started
    database = None
    worker_db_factory = None
    if db_factory is not None:
        web_db_factory = db_factory
    else:
        database = open_database(settings)
        db_factory = functools.partial(_make_db_impl, settings, database.url)
        web_db_factory = functools.partial(db_factory, HTTP_DATABASE_SECONDS)
        worker_db_factory = _worker_db_factory(database.url)
    try:
        with PipelineProbe(
            (r.target for r in pipelines.values() if not is_built_in(r)),
            min(PROBE_SECONDS, settings.job_start_timeout_seconds),
        ) as probe:
            if database is not None:
                ensure_schema(database, settings, telemetry)
                warn_of_few_connections(database.url, settings, role, telemetry)
            pipelines = _with_declared_defaults(pipelines, probe, telemetry)
        manager = None
        if role != "api":
            manager = QueueManager(
                db_factory,
                pipelines=pipelines,
                options=_manager_options(settings),
                telemetry=telemetry,
                worker_db_factory=worker_db_factory,
            )
        web = WebServer(
            web_db_factory(),
            manager or NoScheduler(),
            pipelines=pipelines,
            default_pipeline=settings.pipeline,
            on_stopped=database.close if database is not None else lambda: None,
        )
    except BaseException:
        if database is not None:
            database.close()
        raise
    return Service(database, manager, web)


def _with_declared_defaults(
    pipelines: Mapping[str, Registration], probe: PipelineProbe, telemetry: Telemetry
) -> dict[str, Registration]:
    """The registrations with what their classes say; a class that cannot be asked says nothing."""
    declared, failed = probe.answers()
    completed = dict(pipelines)
    for name, registration in pipelines.items():
        try:
            defaults = declared.get(registration.target, {})
            completed[name] = with_defaults(registration, defaults)
        except ValueError as error:
            failed[registration.target] = str(error)
        if (reason := failed.get(registration.target)) is not None:
            telemetry.emit("pipeline.unknown_defaults", pipeline=name, reason=reason)
    return completed


def _manager_options(settings: Settings) -> ManagerOptions:
    return ManagerOptions(
        max_concurrent_jobs=settings.max_concurrent_jobs,
        poll_interval_seconds=settings.poll_interval_seconds,
        watchdog_interval_seconds=settings.watchdog_interval_seconds,
        node_lease_seconds=settings.node_lease_seconds,
        heartbeat_interval_seconds=settings.heartbeat_seconds,
        shutdown_grace_seconds=settings.shutdown_grace_seconds,
        kill_grace_seconds=settings.kill_grace_seconds,
        default_limits=settings.default_limits,
        start_method=settings.start_method,
    )


def create_app(db_factory: DBFactory | None = None, settings: Settings | None = None) -> FastAPI:
    """API and scheduler in one application, for any ASGI server (`uvicorn --factory`).

    Args:
        db_factory: builds the adapters instead of the settings; picklable, since workers build
            theirs with it too. Its database has to have the schema already.
    """
    return _build(settings or load_settings(), "serve", db_factory).web.app


class _Server(uvicorn.Server):
    """uvicorn that begins our shutdown at the signal and reports where it listens."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[str, int], None],
        on_signal: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_signal = on_signal

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then say where."""
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            self._on_ready(host, port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """End gracefully; a second signal shortens the grace instead of skipping the clean-up."""
        # Not uvicorn's own: it would raise the signal again after a clean stop (exit code -15),
        # and its forced exit skips the lifespan's end, where jobs are given back.
        self.should_exit = True
        self._on_signal()

    def ask_to_stop(self) -> None:
        """The same without a signal."""
        self.handle_exit(signal.SIGTERM, None)


def run(
    role: Role,
    settings: Settings,
    *,
    on_ready: Callable[[str, int], None] = lambda _host, _port: None,
    ends_with_stdin: bool = False,
) -> None:
    """Run one process of Haulage until SIGTERM or SIGINT; returns after a clean stop.

    Args:
        role: "serve" (API and scheduler), "api" or "worker".
        on_ready: told the address once requests are accepted.
        ends_with_stdin: stop too when standard input ends, for a parent that may be killed.
    """
    configure_logging(settings.log_format, settings.log_level)
    if role != "worker":
        _refuse_open_bind(settings)
    service = _build(settings, role)
    try:
        if role == "worker":
            assert service.manager is not None  # noqa: S101  every role but "api" has one
            asyncio.run(_run_worker(service.manager))
        else:
            _run_server(service, settings, on_ready, ends_with_stdin=ends_with_stdin)
    finally:
        service.close()
        # Else the interpreter's end looks through all that was ever imported: 0.45 s of CPU time
        # by measure, and the two seconds after the grace are promised for the process.
        gc.freeze()


def _run_server(
    service: Service,
    settings: Settings,
    on_ready: Callable[[str, int], None],
    *,
    ends_with_stdin: bool,
) -> None:
    # Within the grace of the jobs, or the end of both would come later than promised.
    http_grace_seconds = min(HTTP_GRACE_SECONDS, settings.shutdown_grace_seconds)
    loop: asyncio.AbstractEventLoop
    stopping: asyncio.Task[None] | None = None

    def on_signal() -> None:
        loop.call_soon_threadsafe(begin_end)

    def begin_end() -> None:
        nonlocal stopping
        service.web.refuse_traffic()
        if service.manager is not None:
            service.manager.drain()
        if stopping is None:
            stopping = loop.create_task(end())
        else:
            service.web.end_requests()

    async def end() -> None:
        async with asyncio.TaskGroup() as group:
            if service.manager is not None:
                # Beside the end of the requests, not after it.
                group.create_task(service.manager.stop())
            await asyncio.sleep(http_grace_seconds)
            service.web.end_requests()

    config = uvicorn.Config(
        service.web.app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        # For what does not end then either.
        timeout_graceful_shutdown=math.ceil(http_grace_seconds) + 1,
        lifespan="on",
    )
    server = _Server(config, on_ready, on_signal)
    # Before anything is claimed: a node that cannot be reached must not run jobs.
    listening = _listening_socket(settings)

    async def serve() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        if ends_with_stdin:
            loop.add_reader(sys.stdin.fileno(), lambda: _at_end_of_stdin(loop, server))
        await server.serve(sockets=[listening])

    with listening:
        asyncio.run(serve())
    if not server.started:
        raise HaulageError("the service could not start; the log above says why")


def _listening_socket(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server(
            (settings.host, settings.port), family=family, backlog=2048
        )
    except OSError as error:
        remedy = f"cannot listen on {settings.host} ({error.strerror}): choose another"
        raise ConfigurationError("HAULAGE_PORT", settings.port, remedy) from None
    # Connections inherit it; asyncio sets it for sockets of its own making only. Without it every
    # answer's body waits 40 ms for the client's acknowledgement of the headers.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _at_end_of_stdin(loop: asyncio.AbstractEventLoop, server: _Server) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        server.ask_to_stop()


async def _run_worker(manager: QueueManager) -> None:
    stopping = asyncio.Event()

    def on_signal() -> None:
        manager.drain()
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await manager.start()
        await stopping.wait()
    finally:
        await manager.stop()


def _refuse_open_bind(settings: Settings) -> None:
    if settings.allow_unauthenticated or settings.host == "localhost":
        return
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(settings.host).is_loopback:
            return
    raise ConfigurationError(
        "HAULAGE_HOST",
        settings.host,
        "anyone who reaches this address could run jobs; use 127.0.0.1 behind a proxy that "
        "authenticates, or set HAULAGE_ALLOW_UNAUTHENTICATED=true",
    )
