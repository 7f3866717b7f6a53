"""A soak as one call: cluster, conductor, checker; its traces are kept only where it failed."""

import asyncio
import json
import os
import platform
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Final

from soak.checker import judge
from soak.conductor import ROLES, Conductor
from soak.history import History, load_history
from soak.pace import Pace
from soak.report import Soak
from support.cluster import durable_cluster

from app.db import migrate
from app.db.urls import DatabaseURL

DATABASE: Final = "haulage"


def soak(pace: Pace, seed: int) -> tuple[Soak, Path | None]:
    """Run and judge one soak; its report's data, and the folder with all traces if it failed."""
    folder = Path(tempfile.mkdtemp(prefix="haulage-soak-"))
    is_kept = True
    try:
        found = _soak(pace, seed, folder)
        is_kept = not found.has_passed
    except (KeyboardInterrupt, SystemExit):
        is_kept = False
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder)
    return found, folder if is_kept else None


def _soak(pace: Pace, seed: int, folder: Path) -> Soak:
    with durable_cluster() as server:
        server.ensure_database(DATABASE)
        url = server.url(DATABASE)
        migrate.upgrade(DatabaseURL.parse(url))
        conductor = Conductor(pace, seed, server, url, folder)
        asyncio.run(conductor.run())
        history = asyncio.run(
            load_history(url, conductor.witnesses, folder / "faults.jsonl", folder / "promises")
        )
    _keep(history, folder / "history.json")
    return Soak(
        pace=pace,
        seed=seed,
        machine=f"{platform.system()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        roles=ROLES,
        history=history,
        judgement=judge(history, pace),
        incidents=conductor.incidents,
        not_done=conductor.not_done,
        drain_seconds=conductor.drain_seconds,
        sent=conductor.traffic.sent,
        refused=conductor.traffic.refused,
    )


def _keep(history: History, path: Path) -> None:
    path.write_text(json.dumps(asdict(history)))
