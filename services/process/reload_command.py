"""`tandem reload`: tells a running `tandem serve` to replace its processes behind the shim, and waits for the end."""

import os
import signal
import sys
import time
from pathlib import Path

from services.errors import Fatal
from services.options.tools import ReloadOptions
from services.process import control_file
from services.process.control_file import DONE, RUNNING, Control
from services.telemetry.logs import fail

POLL_SECONDS = 0.1
BEGIN_SECONDS = 10.0  # for the launcher to begin


def main(options: ReloadOptions) -> int:
    """Returns the exit status: 0, 1 if there is no such server or the reload fails."""
    try:
        folder = _folder(options.runtime_dir)
        sys.stdout.write(f"{_reload(folder)}\n")
    except Fatal as error:
        return fail("reload", error)
    return 0


def _folder(given: str | None) -> Path:
    """Returns the runtime directory of the server. Raises Fatal unless there is exactly one."""
    if given is not None:
        return Path(given)
    folders = list(control_file.running())
    if not folders:
        raise Fatal("no `tandem serve` of this user runs here; give its --runtime-dir if it has one")
    if len(folders) > 1:
        found = ", ".join(f"{folder} (process {control.pid})" for folder in folders if (control := _read(folder)))
        raise Fatal(f"several servers run: give --runtime-dir, one of {found}")
    return folders[0]


def _read(folder: Path) -> Control:
    control = control_file.read(folder)
    if control is None:
        raise Fatal(f"no `tandem serve` runs with --runtime-dir {folder}")
    return control


def _reload(folder: Path) -> str:
    """Returns what the launcher did last. Raises Fatal if it fails, ends, or does not begin."""
    before = _read(folder)
    if before.state == RUNNING:
        raise Fatal("a reload is running already")
    try:
        os.kill(before.pid, signal.SIGUSR2)
    except OSError as error:  # it has ended meanwhile, or is another user's
        raise Fatal(f"process {before.pid} cannot be told: {error.strerror}") from error
    deadline = time.monotonic() + BEGIN_SECONDS
    told = ""
    while (control := _read(folder)).reloads == before.reloads or control.state == RUNNING:
        if control.reloads == before.reloads and time.monotonic() > deadline:
            raise Fatal(f"process {before.pid} did not begin within {BEGIN_SECONDS:.0f} s: its log may tell why")
        if control.text not in ("", told) and control.state == RUNNING:
            told = control.text
            sys.stdout.write(f"{told}\n")
            sys.stdout.flush()
        time.sleep(POLL_SECONDS)
    if control.state != DONE:
        raise Fatal(control.text)
    return control.text
