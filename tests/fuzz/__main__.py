"""`make fuzz`: FUZZ_EXAMPLES generated requests for each operation, by FUZZ_SEED.

PYTHONPATH=.:tests python -m fuzz
"""

import os
import random
import sys
import tempfile
from pathlib import Path

from fuzz.run import fuzz
from support.cluster import durable_cluster
from support.service import running


def main() -> int:
    """Fuzz a service of its own on a database of its own; 0 where every answer is right."""
    examples = int(os.environ.get("FUZZ_EXAMPLES") or 200)
    seed = int(os.environ.get("FUZZ_SEED") or random.randrange(1_000_000))  # noqa: S311
    print(f"fuzzing with {examples} examples, seed {seed}", flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory() as scratch, durable_cluster() as cluster:
        folder = Path(scratch)
        cluster.ensure_database("fuzz")
        url = cluster.url("fuzz")
        with running("api", url, folder / "log", auto_migrate=True) as service:
            assert service.url is not None
            done = fuzz(service.url, examples, seed, folder)
        log = (folder / "log").read_text()
    print(done.stdout, done.stderr)  # noqa: T201
    if "Traceback" in log:
        print(log)  # noqa: T201
        return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
