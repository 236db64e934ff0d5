"""How many processes the kernel's out-of-memory killer has ended: of this process's cgroup, or of the machine."""

from pathlib import Path

from services.machine import files
from services.machine.available import own_group
from services.machine.files import read

COUNT = "oom_kill "  # in each of the files


def oom_kills() -> int:
    """Returns the number of kills since the cgroup was made, or the machine started; 0 if the system reports none.

    Only a cgroup's number leaves out other programs. The root cgroup of version 2 has none.
    """
    groups = files.SYS / "fs/cgroup"
    first_version = groups / "memory"
    sources = (
        groups / own_group() / "memory.events",
        first_version / own_group_of_version_1() / "memory.oom_control",
        first_version / "memory.oom_control",  # in a container, which does not see its own path
        files.PROC / "vmstat",
    )
    for source in sources:
        for line in read(source).splitlines():
            if line.startswith(COUNT):
                return int(line.removeprefix(COUNT))
    return 0


def own_group_of_version_1() -> Path:
    """Returns the path of this process's memory cgroup of version 1, relative to the mount; empty without one."""
    lines = (line.split(":", 2) for line in read(files.PROC / "self/cgroup").splitlines())
    return Path(next((path.lstrip("/") for _, kinds, path in lines if "memory" in kinds.split(",")), ""))
