"""The processes behind a server's shim, by role: finds them, and strikes them."""

import asyncio
import contextlib
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.connections import cut
from tests.chaos.schedule import CUT, KILL, PAUSE, TOKENIZER, Blow
from tests.e2e.harness import Server, alive, argv_of, children_of, role_of


@dataclass(frozen=True)
class Victim:
    """One process. `name`: tokenizer-0 or tokenizer-1, else the role, also of a spare that has taken over."""

    pid: int
    role: str
    name: str


def victims(server: Server) -> list[Victim]:
    """Returns all living children of the launcher that have a role, the shim included."""
    found = []
    for pid in children_of(server.process.pid):
        with contextlib.suppress(OSError):
            role = role_of(pid)
            if role and alive(pid):
                sockets = [one for one in argv_of(pid) if role == TOKENIZER and one.startswith("--listen=")]
                found.append(Victim(pid, role, Path(sockets[0]).stem if sockets else role))
    return found


def sockets_above(server: Server, victim: Victim) -> list[str]:
    """Returns the paths of the Unix sockets through which the process above may be connected to this one."""
    return [str(path) for path in Path(server.runtime_dir).glob(f"{victim.role}*.sock")]


def stopped(pid: int) -> bool:
    """Returns whether the process lives and a signal has stopped it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def choose(server: Server, blows: tuple[Blow, ...], rng: random.Random) -> list[Victim] | None:
    """Returns one process for each blow, no process twice; None if one of the roles has no running process."""
    free = [victim for victim in victims(server) if not stopped(victim.pid)]
    chosen: list[Victim] = []
    for blow in blows:
        fitting = [victim for victim in free if victim.role == blow.role]
        if not fitting:
            return None
        chosen.append(rng.choice(sorted(fitting, key=lambda victim: victim.name)))
        free.remove(chosen[-1])
    return chosen


def strike(server: Server, blow: Blow, victim: Victim) -> None:
    """Does it. Raises OSError if the process has ended, or has no connection to cut."""
    if blow.kind == KILL:
        os.kill(victim.pid, signal.SIGKILL)
    elif blow.kind == CUT:
        if not cut(victim.pid, sockets_above(server, victim)):
            raise ConnectionError(f"the {victim.name} has no connection")
    else:
        os.kill(victim.pid, signal.SIGSTOP)


async def continue_later(blow: Blow, victim: Victim) -> None:
    """Continues a process that was stopped for `blow.seconds`, if it still lives."""
    assert blow.kind == PAUSE
    await asyncio.sleep(blow.seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim.pid, signal.SIGCONT)


async def wait_for_end(victim: Victim, seconds: float) -> float | None:
    """Returns the seconds until the process ended. After `seconds` it is killed: returns None."""
    clock = asyncio.get_running_loop().time
    began = clock()
    while alive(victim.pid):
        if clock() - began > seconds:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
            return None
        await asyncio.sleep(0.05)
    return clock() - began
