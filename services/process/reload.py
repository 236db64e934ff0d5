"""Replaces the processes behind the shim group by group, with the code that is installed now.

Each process hands over its requests. The next group is replaced once a token could be made again, and REST_SECONDS
later: on a busy machine, requests wait for what loads as well, and few are to wait for two replacements. An engine and
its worker are one group, for requests are computed again if either is replaced. The shim stays, with all connections of
clients.
"""

import http.client
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from services.process.child_processes import ChildProcesses
from services.process.control_file import DONE, FAILED, RUNNING, ControlFile
from services.version import PROTOCOL

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 600.0  # for one process to be ready: a worker loads the model
REST_SECONDS = 10.0
ASK_SECONDS = 0.5
ASK_PROTOCOL = "from services.version import PROTOCOL; print(PROTOCOL)"


class ReloadFailed(Exception):
    """The reload stops here. What was replaced stays replaced, and the server goes on."""


def reload(children: ChildProcesses, groups: Sequence[Sequence[str]], control: ControlFile) -> Iterator[None]:
    """Replaces the children with these names, group by group in this order; yields while it waits, so that the caller
    can supervise.

    The log and `control` tell what it does.
    """
    names = [name for group in groups for name in group]
    control.begin()
    log.info("a reload begins: %s", ", ".join(names))
    try:
        if not control.has_folder:
            raise ReloadFailed("the runtime directory was removed, and no process can start without it")
        yield from check_protocol()
        num_done = 0
        for group in groups:
            if num_done:
                yield from _rest()
            for name in group:
                if children.role_of(name) == name:  # the first of its role: later spares have loaded the new code
                    children.renew_spare(name)
            yield from _replace(children, group)
            for name in group:
                num_done += 1
                log.info("the %s is replaced", name)
                control.report(RUNNING, f"{name}: replaced ({num_done} of {len(names)})")
    except ReloadFailed as failure:
        log.error("the reload has failed: %s", failure)
        control.report(FAILED, str(failure))
    else:
        control.report(DONE, f"{len(names)} processes are replaced")


def check_protocol() -> Iterator[None]:
    """Raises ReloadFailed if the installed tandem speaks another protocol than this process, whose shim stays. Yields
    while it waits for the answer."""
    command = [sys.executable, "-c", ASK_PROTOCOL]
    try:
        asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError as error:
        raise ReloadFailed(f"the installed tandem cannot be started: {error}") from error
    with asked:
        try:
            yield from _until(lambda: asked.poll() is not None, "the installed tandem was not imported")
        finally:
            asked.kill()
        found = asked.stdout.read().strip() if asked.stdout is not None else ""
    if found != str(PROTOCOL):
        found = f"has protocol {found}" if found else "cannot be imported"
        raise ReloadFailed(f"the installed tandem {found}, the running one has protocol {PROTOCOL}: restart the server")


def _replace(children: ChildProcesses, group: Sequence[str]) -> Iterator[None]:
    """Replaces the children of a group at the same time."""
    what = " and ".join(group)
    yield from _until(lambda: all(map(children.is_replaceable, group)), f"a spare was not loaded, or {what} restarted,")
    old = {name: children.children[name].process for name in group}
    for name in group:
        children.replace(name)
    for name in group:
        yield from _until(partial(_is_other, children, name, old[name]), f"the {name} was not replaced")
    for name in group:
        yield from _until(partial(is_ready, children.metrics_address(name)), f"the new {name} was not ready")


def _is_other(children: ChildProcesses, name: str, old: object) -> bool:
    return children.children[name].process is not old


def _rest() -> Iterator[None]:
    end = time.monotonic() + REST_SECONDS
    while time.monotonic() < end:
        yield


def _until(condition: Callable[[], bool], failure: str) -> Iterator[None]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise ReloadFailed(f"{failure} within {PATIENCE_SECONDS:.0f} s")
        yield


def is_ready(address: str) -> bool:
    """Returns whether /ready of the metrics server at host:port answers 200."""
    connection = http.client.HTTPConnection(address, timeout=ASK_SECONDS)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
