"""What each process of a server holds: open files, threads, memory, and live objects of tandem's classes."""

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.processes import Victim, victims
from tests.e2e.harness import Server

PROBE = Path(__file__).with_name("probe")
PROBE_SECONDS = 10.0


@dataclass(frozen=True)
class Snapshot:
    """Of one process. `own`: kilobytes that it has written itself, anonymous or shared; `resident`: these and the pages
    of mapped files, which the system takes back at will. `objects`: live ones by class; {} if not asked for.
    `collected`: objects that the garbage collector had to free so far, because cycles held them."""

    pid: int
    role: str
    name: str
    files: int
    threads: int
    own: int
    resident: int
    objects: dict[str, int] = field(default_factory=dict)
    collected: int = 0


def probe_environment(folder: Path) -> dict[str, str]:
    """Returns the variables with which the processes of a server answer the probe. `folder`: where they write."""
    return {"PYTHONPATH": os.pathsep.join([str(PROBE), *_path()]), "TANDEM_CHAOS_PROBE": str(folder)}


def _path() -> list[str]:
    return [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]


def snapshot(victim: Victim, **told: Any) -> Snapshot | None:
    """Returns what the process holds, None if it has ended. `told`: the fields that it has written itself."""
    try:
        lines = Path(f"/proc/{victim.pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        files = sum(1 for _ in Path(f"/proc/{victim.pid}/fd").iterdir())
        anonymous, shared, resident = (int(status[name].split()[0]) for name in ("RssAnon", "RssShmem", "VmRSS"))
    except (OSError, KeyError):
        return None
    held = (files, int(status["Threads"]), anonymous + shared, resident)
    return Snapshot(victim.pid, victim.role, victim.name, *held, **told)


def snapshots(server: Server) -> list[Snapshot]:
    """Returns what the launcher and its children hold, without objects."""
    launcher = Victim(server.process.pid, "launcher", "launcher")
    return [one for victim in [launcher, *victims(server)] if (one := snapshot(victim)) is not None]


def probed(server: Server, folder: Path) -> list[Snapshot]:
    """Returns what the launcher's children hold, with objects. Raises AssertionError if one does not answer."""
    asked = [victim for victim in victims(server) if _answers(victim.pid)]
    for victim in asked:
        (folder / f"{victim.pid}.json").unlink(missing_ok=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGUSR2)
    found = []
    deadline = time.monotonic() + PROBE_SECONDS
    for victim in asked:
        path = folder / f"{victim.pid}.json"
        while not path.exists():
            assert time.monotonic() < deadline, f"the {victim.name} did not answer within {PROBE_SECONDS} s"
            time.sleep(0.02)
        if (one := snapshot(victim, **json.loads(path.read_text()))) is not None:
            found.append(one)
    return found


def _answers(pid: int) -> bool:
    """Returns whether the process handles SIGUSR2, which ends one that does not."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1)
    return False
