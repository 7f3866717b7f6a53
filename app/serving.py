"""The HTTP server of one process: its socket, its signals, its end beside that of the scheduler."""

import asyncio
import math
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

from app.api.security_protocol import MAX_HEAD_BYTES, ProblemProtocol
from app.api.server import WebServer
from app.config import Settings
from app.domain.errors import ConfigurationError, HaulageError
from app.orchestrator.manager import QueueManager

# Open connections get this long at shutdown; jobs have their own grace.
HTTP_GRACE_SECONDS: Final = 3


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


def serve(
    web: WebServer,
    manager: QueueManager | None,
    settings: Settings,
    on_ready: Callable[[str, int], None],
    *,
    ends_with_stdin: bool,
) -> None:
    """Serve HTTP until SIGTERM or SIGINT; returns after a clean stop.

    Args:
        manager: the scheduler that lives beside it; its lifespan starts and stops it.
        on_ready: told the address once requests are accepted.
        ends_with_stdin: stop too when standard input ends.

    Raises:
        HaulageError: the address cannot be had, or the service did not come up.
    """
    # Within the grace of the jobs, or the end of both would come later than promised.
    http_grace_seconds = min(HTTP_GRACE_SECONDS, settings.shutdown_grace_seconds)
    loop: asyncio.AbstractEventLoop
    is_ending = False
    stopping: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        loop.call_soon_threadsafe(begin_end)

    def begin_end() -> None:
        nonlocal is_ending
        web.refuse_traffic()
        if manager is not None:
            manager.drain()
        if is_ending:
            web.end_requests()
            return
        is_ending = True
        loop.call_later(http_grace_seconds, web.end_requests)
        if manager is not None:
            # Beside the end of the requests, not after it; the lifespan's end waits for it too.
            stopping.append(loop.create_task(manager.stop()))

    config = uvicorn.Config(
        web.app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        http=ProblemProtocol,
        ws="none",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        server_header=False,
        # For what does not end then either.
        timeout_graceful_shutdown=math.ceil(http_grace_seconds) + 1,
        lifespan="on",
    )
    server = _Server(config, on_ready, on_signal)
    # Before anything is claimed: a node that cannot be reached must not run jobs.
    listening = _listening_socket(settings)

    async def run() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        if ends_with_stdin:
            loop.add_reader(sys.stdin.fileno(), lambda: _at_end_of_stdin(loop, server))
        await server.serve(sockets=[listening])

    with listening:
        asyncio.run(run())
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
