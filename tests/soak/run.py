"""A soak as one call: cluster, conductor, checker; its traces are kept only where it failed."""

import asyncio
import json
import os
import platform
import shutil
import subprocess
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
from support.service import ROOT

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
        machine=_machine(),
        roles=ROLES,
        history=history,
        judgement=judge(history, pace),
        incidents=conductor.incidents,
        not_done=conductor.not_done,
        drain_seconds=conductor.drain_seconds,
        sent=conductor.traffic.sent,
        refused=conductor.traffic.refused,
    )


def _machine() -> str:
    git = ["git", "describe", "--always", "--dirty"]
    said = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return (
        f"Revision {said.strip() or 'unknown'}, {platform.system()}, {os.cpu_count()} CPUs, "
        f"load average {os.getloadavg()[2]:.1f}, Python {platform.python_version()}"
    )


def _keep(history: History, path: Path) -> None:
    path.write_text(json.dumps(asdict(history)))
