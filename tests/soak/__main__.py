"""`make soak`: jobs and faults for SOAK_SECONDS by SOAK_SEED; fails on anything lost or doubled.

PYTHONPATH=.:tests python -m soak [--seconds N] [--seed N] [--report FILE] [--quick]

SOAK_REPORT names the report's file where no option does.
"""

import argparse
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType

from soak.pace import Pace, quick_pace
from soak.report import render
from soak.run import soak


def main() -> int:
    """Run one soak and print its report; 0 where nothing was lost or doubled, and all in time."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, _end)
    make_pace = quick_pace if arguments.quick else Pace
    print(f"soak of {arguments.seconds:g} s, seed {arguments.seed}", flush=True)  # noqa: T201
    found, folder = soak(make_pace(arguments.seconds), arguments.seed)
    report = render(found)
    if arguments.report is not None:
        arguments.report.write_text(report + "\n")
    if folder is not None:
        print(f"traces are kept in {folder}\n")  # noqa: T201  what a command says
    print(report)  # noqa: T201
    return 0 if found.has_passed else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    seconds = float(os.environ.get("SOAK_SECONDS") or 600)
    seed = int(os.environ.get("SOAK_SEED") or random.randrange(1_000_000))  # noqa: S311
    parser.add_argument("--seconds", type=float, default=seconds, help="time with faults")
    parser.add_argument("--seed", type=int, default=seed, help="of everything random")
    report = os.environ.get("SOAK_REPORT")
    parser.add_argument(
        "--report",
        type=Path,
        default=report and Path(report),
        help="a file for the report, in Markdown",
    )
    parser.add_argument("--quick", action="store_true", help="a lease of 5 s instead of 15")
    return parser.parse_args()


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
