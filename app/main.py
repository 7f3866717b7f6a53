"""The composition root: the only module that names concrete adapters and puts the parts together.

settings -> database (given, or bundled) -> schema -> adapters -> QueueManager, WebServer
"""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import ipaddress
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from fastapi import FastAPI

from app.api.intake import declares
from app.api.security import Access
from app.api.server import NoScheduler, WebServer
from app.config import PIPELINE, Settings, load_settings
from app.db import schemas
from app.db.interface import DBFactory, DBInterface
from app.db.opening import AnyURL, Database, open_database
from app.db.postgres.adapter import MAX_POOL_CONNECTIONS, PostgresJobsDB
from app.db.postgres.announcing import Announcer, announce_pipelines
from app.db.postgres.budget import connections_left
from app.db.urls import DatabaseURL
from app.domain.errors import ConfigurationError
from app.domain.jobs import Registration
from app.loops import Companion
from app.orchestrator.manager import QueueManager
from app.orchestrator.options import ManagerOptions
from app.orchestrator.pruning import Pruner
from app.pipelines.registry import is_built_in, load_registrations, with_declaration
from app.serving import serve
from app.telemetry import Telemetry, configure_logging, default_telemetry
from app.webhooks.addresses import AddressRules
from app.webhooks.delivering import DeliveryService
from app.worker.probe import PROBE_SECONDS, PipelineProbe

# Who submits gets an answer in this time, if need be that there is none; the scheduler tries again
# by itself. Workers, with large results to store, keep the adapter's own time.
HTTP_DATABASE_SECONDS: Final = 5.0
SCHEDULER_DATABASE_SECONDS: Final = 10.0

Role = Literal["serve", "api", "worker"]
_T = TypeVar("_T")


def ensure_schema(database: Database, settings: Settings, telemetry: Telemetry) -> str:
    """Upgrade the bundled database, or a given one where that is wished; refuse a misfit.

    Returns its revision.

    Raises:
        SchemaMismatchError: naming the command that mends it.
    """
    found = schemas.state(database.url)
    if not found.is_ahead and (database.embedded is not None or settings.auto_migrate):
        schemas.upgrade(database.url, telemetry=telemetry)
        found = schemas.state(database.url)
    found.require_current()
    return found.wanted


def warn_of_few_connections(
    url: DatabaseURL, settings: Settings, role: Role, telemetry: Telemetry
) -> None:
    """Say so where the server has fewer connections left than this process may come to need.

    It would work all the same: workers wait for a connection, and submitters may be told to.
    """
    pool = MAX_POOL_CONNECTIONS + settings.notify
    # The scheduler's pool, LISTEN, one each for lease and retention, and one for every worker.
    needed = 0 if role == "api" else pool + 3 + settings.max_concurrent_jobs
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


def announce(
    url: DatabaseURL,
    settings: Settings,
    role: Role,
    pipelines: Mapping[str, Registration],
    telemetry: Telemetry,
    unasked: Collection[str] = (),
) -> Announcer:
    """Tell the database what we can run, for jobs by SQL; the answer tries on where that failed."""
    once = functools.partial(
        announce_pipelines,
        url,
        pipelines.values(),
        # A worker's own default counts for nobody: those who take requests have it.
        default=None if role == "worker" else settings.pipeline,
        with_dataset=[name for name, each in pipelines.items() if declares(each, "dataset")],
        unasked=unasked,
    )
    announcer = Announcer(once, telemetry)
    announcer.announce_at_start()
    return announcer


def _make_db_impl(
    settings: Settings | None = None,
    url: AnyURL | None = None,
    command_timeout_seconds: float = SCHEDULER_DATABASE_SECONDS,
) -> DBInterface:
    """A `DBInterface` built from the settings; it connects at first use.

    Args:
        url: of the database that is open already, else the settings' one is opened.
    """
    settings = settings or load_settings()
    url = url or open_database(settings).url
    build, address = _adapter(url)
    if isinstance(url, DatabaseURL):
        build = functools.partial(build, listen_dsn=_listen_dsn(settings))
    return build(
        address,
        default_pipeline=settings.pipeline,
        command_timeout_seconds=command_timeout_seconds,
        notify=settings.notify,
    )


def on_database(settings: Settings, work: Callable[[DBInterface], Awaitable[_T]]) -> _T:
    """What `work` returns, done on the settings' database by a process that only visits it."""
    with open_database(settings) as database:
        return asyncio.run(_visit(settings, database.url, work))


async def _visit(
    settings: Settings, url: AnyURL, work: Callable[[DBInterface], Awaitable[_T]]
) -> _T:
    db = _make_db_impl(settings.model_copy(update={"notify": False}), url)
    try:
        return await work(db)
    finally:
        await db.close()


def _process_db_factory(url: AnyURL, application_name: str) -> DBFactory:
    # Picklable: the adapter's class with strings and numbers. One connection per process.
    build, address = _adapter(url)
    return functools.partial(
        build, address, application_name=application_name, max_connections=1, notify=False
    )


def _adapter(url: AnyURL) -> tuple[Callable[..., DBInterface], str]:
    """The adapter's class for a database, and the address as it takes it."""
    if isinstance(url, DatabaseURL):
        return PostgresJobsDB, url.asyncpg_dsn
    try:
        # Imported by those alone who have such a database: its driver is an extra.
        from app.db.mongo.adapter import MongoJobsDB  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise url.without_driver from error
    return MongoJobsDB, url.text


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
    rules = _webhook_rules(settings)
    database = None
    revision = None
    worker_db_factory = None
    if db_factory is not None:
        web_db_factory = aside_db_factory = db_factory
    else:
        database = open_database(settings)
        db_factory = functools.partial(_make_db_impl, settings, database.url)
        web_db_factory = functools.partial(db_factory, HTTP_DATABASE_SECONDS)
        worker_db_factory = _process_db_factory(database.url, "haulage-worker")
        aside_db_factory = _process_db_factory(database.url, "haulage-aside")
    try:
        with PipelineProbe(
            (r.target for r in pipelines.values() if not is_built_in(r)),
            min(PROBE_SECONDS, settings.job_start_timeout_seconds),
        ) as probe:
            if database is not None:
                revision = ensure_schema(database, settings, telemetry)
            if database is not None and isinstance(database.url, DatabaseURL):
                warn_of_few_connections(database.url, settings, role, telemetry)
            pipelines, unasked = _with_declarations(pipelines, probe, telemetry)
        companions: list[Companion] = []
        # Who submits by SQL does so to PostgreSQL.
        if database is not None and isinstance(database.url, DatabaseURL):
            companions = [announce(database.url, settings, role, pipelines, telemetry, unasked)]
        manager = None
        if role != "api":
            manager = QueueManager(
                db_factory,
                pipelines=pipelines,
                options=_manager_options(settings),
                telemetry=telemetry,
                worker_db_factory=worker_db_factory,
                companions=[Pruner(db_factory, settings.retention, telemetry), *companions],
            )
        web_db = web_db_factory()
        web = WebServer(
            web_db,
            manager or NoScheduler(companions),
            pipelines=pipelines,
            default_pipeline=settings.pipeline,
            access=_access(settings),
            webhook_rules=rules,
            deliveries=DeliveryService(web_db, rules, telemetry),
            on_stopped=database.close if database is not None else lambda: None,
            vital_signs=None if manager is None else manager.vital_signs,
            schema_revision=revision,
            db_factory=aside_db_factory,
        )
    except BaseException:
        if database is not None:
            database.close()
        raise
    return Service(database, manager, web)


def _with_declarations(
    pipelines: Mapping[str, Registration], probe: PipelineProbe, telemetry: Telemetry
) -> tuple[dict[str, Registration], list[str]]:
    """The registrations with what their classes say, and the names of those that say nothing."""
    declared, failed = probe.answers()
    unasked: list[str] = []
    completed = dict(pipelines)
    for name, registration in pipelines.items():
        if (found := declared.get(registration.target)) is not None:
            try:
                completed[name] = with_declaration(registration, found)
            except ValueError as error:
                failed[registration.target] = str(error)
                without = dataclasses.replace(found, defaults={})
                completed[name] = with_declaration(registration, without)
        if (reason := failed.get(registration.target)) is not None:
            unasked.append(name)
            telemetry.emit("pipeline.unknown_defaults", pipeline=name, reason=reason)
    return completed, unasked


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
    service = _build(settings, role)
    try:
        if role != "worker":
            _refuse_open_bind(settings, service.database)
        if role == "worker":
            assert service.manager is not None  # noqa: S101  every role but "api" has one
            asyncio.run(_run_worker(service.manager))
        else:
            serve(service.web, service.manager, settings, on_ready, ends_with_stdin=ends_with_stdin)
    finally:
        service.close()
        # Else the interpreter's end looks through all that was ever imported: 0.45 s of CPU time
        # by measure, and the two seconds after the grace are promised for the process.
        gc.freeze()


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


def _access(settings: Settings) -> Access:
    admin_key = settings.admin_key
    return Access(
        needs_key=settings.require_key,
        is_open=settings.allow_unauthenticated,
        admin_key=None if admin_key is None else admin_key.get_secret_value(),
        allowed_hosts=frozenset(map(str.lower, settings.allowed_hosts)) or None,
        cors_origins=tuple(settings.cors_origins),
        max_pending_jobs=settings.max_pending_jobs_per_key,
        max_pending_bytes=settings.max_pending_bytes_per_key,
        max_datasets=settings.max_datasets_per_key,
    )


def _webhook_rules(settings: Settings) -> AddressRules:
    try:
        return AddressRules.parse(settings.webhook_allow)
    except ValueError as error:
        raise ConfigurationError(
            "HAULAGE_WEBHOOK_ALLOW", ",".join(settings.webhook_allow), str(error)
        ) from None


def _refuse_open_bind(settings: Settings, database: Database | None) -> None:
    """Refuse an address beyond loopback that nobody has a key for, unless settings say so.

    It would not be open (such connections need a key in any case), but of no use: a mistake.
    """
    if settings.allow_unauthenticated or settings.require_key or settings.admin_key is not None:
        return
    if settings.host == "localhost":
        return
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(settings.host).is_loopback:
            return
    if database is not None and asyncio.run(
        _visit(settings, database.url, lambda db: db.has_keys())
    ):
        return
    raise ConfigurationError(
        "HAULAGE_HOST",
        settings.host,
        "anyone who reaches this address could run jobs, and there is no API key: make one with "
        "`haulage keys create NAME --scope admin`, or use 127.0.0.1 behind a proxy that "
        "authenticates; HAULAGE_ALLOW_UNAUTHENTICATED=true opens it to everybody",
    )
