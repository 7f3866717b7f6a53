"""What this machine gives the process: CPUs and memory, control groups respected."""

import math
import os
import re
from pathlib import Path
from typing import Final

# Of the usable memory that jobs may have together, and what each may have at least.
JOBS_MEMORY_SHARE: Final = 0.8
LEAST_JOB_MEMORY_BYTES: Final = 1024**3


def usable_cpus() -> int:
    """CPUs that this process may use: affinity mask and cgroup quota respected, at least 1."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # no affinity on this system
        allowed = os.cpu_count() or 1
    quotas = [quota for folder in _own_cgroups() if (quota := _cgroup_cpus(folder)) is not None]
    return max(1, min([allowed, *(math.ceil(quota) for quota in quotas)]))


def _own_cgroups(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> list[Path]:
    """The control group of this process and its ancestors up to `root`; each may have a quota."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return [root]
    # Version 2 is the line with the empty list of controllers: "0::/system.slice/haulage.service".
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    folder = root / own.strip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]


def _cgroup_cpus(root: Path) -> float | None:
    """The CPU quota of this control group (version 2, then 1), None without one."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        cpus = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max": no quota
        return None
    return cpus if cpus > 0 else None


def usable_memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that this process may use: the machine's or its control group's; None if unknown."""
    try:
        total = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:  # not Linux
        return None
    limits = [limit for folder in _own_cgroups() if (limit := _cgroup_memory(folder)) is not None]
    return min([int(total[1]) * 1024, *limits]) if total else min(limits, default=None)


def _cgroup_memory(root: Path) -> int | None:
    """The memory limit of this control group (version 2, then 1), None without one."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int((root / name).read_text())
        except (OSError, ValueError):  # "max": no limit
            continue
    return None


def memory_share_bytes(slots: int) -> int | None:
    """What each of `slots` jobs may use by default: an equal share, at least 1 GiB."""
    usable = usable_memory_bytes()
    if usable is None:
        return None
    return max(LEAST_JOB_MEMORY_BYTES, int(usable * JOBS_MEMORY_SHARE / slots))
