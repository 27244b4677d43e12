"""What this process may use of its machine. Knows Linux; knows no kernels, and needs no compiler."""

import os
from pathlib import Path


def physical_cores() -> int:
    """Cores that this process may use, at least 1: those it may run on, the threads of one core once, within its group's quota."""
    allowed = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text().strip() if siblings.is_file() else str(cpu))
    quota = Path("/sys/fs/cgroup/cpu.max")
    granted, period = quota.read_text().split() if quota.is_file() else ("max", "1")
    limit = len(cores) if granted == "max" else -(-int(granted) // int(period))
    return max(1, min(len(cores), limit))
