"""The stream of jobs over HTTP: what was answered counts, anything else may or may not exist."""

import asyncio
import random
from pathlib import Path
from typing import Final

import httpx2
from soak.nodes import Nodes
from soak.pace import Submission, submissions

PATIENCE_SECONDS: Final = 5.0
HEALTHY_SHARE: Final = 0.8


class Traffic:
    """Sends jobs to whichever API is up and writes down what was promised.

    Attributes:
        sent: submissions tried; `refused` of them got no promise.
    """

    def __init__(self, nodes: Nodes, promises: Path, chance: random.Random) -> None:
        self._nodes = nodes
        self._promises = promises
        self._chance = chance
        self._sending: set[asyncio.Task[None]] = set()
        self.sent = 0
        self.refused = 0

    async def flow(self, seconds: float) -> None:
        """Submit for so long, then wait for the answers that are still to come."""
        end = asyncio.get_running_loop().time() + seconds
        async with httpx2.AsyncClient(timeout=PATIENCE_SECONDS) as client:
            for submission in submissions(self._chance):
                await asyncio.sleep(submission.pause_seconds)
                if asyncio.get_running_loop().time() > end:
                    break
                # One API that is frozen must not hold up the stream.
                task = asyncio.create_task(self._send(client, submission))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
            await asyncio.gather(*self._sending)

    async def _send(self, client: httpx2.AsyncClient, submission: Submission) -> None:
        self.sent += 1
        body = {
            "payload": submission.payload,
            "pipeline": submission.kind,
            "max_attempts": submission.max_attempts,
        }
        # Mostly to a healthy one, as behind a load balancer.
        urls = (self._chance.random() < HEALTHY_SHARE and self._nodes.healthy) or self._nodes.urls
        try:
            answer = await client.post(f"{self._chance.choice(urls)}/enqueue", json=body)
            answer.raise_for_status()
        except (IndexError, httpx2.HTTPError):
            self.refused += 1
            return
        with self._promises.open("a") as file:
            file.write(f"{answer.json()['id']} {submission.payload['number']}\n")


def read_promises(path: Path) -> dict[str, int]:
    """The submission's number of each job that was promised, by its id."""
    if not path.exists():
        return {}
    lines = [line.split() for line in path.read_text().splitlines()]
    return {job_id: int(number) for job_id, number in lines}
