"""A process whose stderr cannot be written goes on; once it can be, the log says how many lines are missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_disk import fill, small_disk

LINES = 1000
# Argument 1: log format; 2: what stderr is at first; 3: what it is then. "closed" is a pipe that no process reads.
PROGRAM = f"""
import logging, os, sys
from services.telemetry.logs import fail, set_up_logging
def become(what):
    if what == "closed":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(what, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(writer, 2)
set_up_logging("engine", "info", sys.argv[1])
log = logging.getLogger("test")
become(sys.argv[2])
for count in range({LINES}):
    log.info("line %d", count)
fail("engine", ValueError("why"))
become(sys.argv[3])
log.info("first\\u20ac")
log.info("second")
"""
NO_SPACE, BROKEN_PIPE = "No space left on device", "Broken pipe"


def run(style: str, before: object, after: object) -> int:
    return subprocess.run([sys.executable, "-c", PROGRAM, style, str(before), str(after)], check=False).returncode


@pytest.mark.parametrize(("broken", "why"), [("/dev/full", NO_SPACE), ("closed", BROKEN_PIPE)])
def test_lines_that_cannot_be_written_are_counted(broken: str, why: str, tmp_path: Path) -> None:
    assert run("text", broken, tmp_path / "log") == 0
    empty, missing, first, second = (tmp_path / "log").read_text().splitlines()
    assert empty == ""
    assert missing.endswith(
        f" WARNING [engine] {LINES} log lines are missing here: stderr could not be written ({why})"
    )
    assert first.endswith("INFO [engine] first\u20ac") and second.endswith("INFO [engine] second")


def test_the_line_is_json_if_all_are(tmp_path: Path) -> None:
    assert run("json", "/dev/full", tmp_path / "log") == 0
    missing, *others = map(json.loads, (tmp_path / "log").read_text().split("\n")[1:-1])
    assert (missing["level"], missing["message"].partition(" ")[0]) == ("warning", f"{LINES + 1}"), "and the failure"
    assert [other["message"] for other in others] == ["first\u20ac", "second"]


def test_a_line_is_whole_or_is_missing_on_a_disk_that_gets_full(tmp_path: Path) -> None:
    """The disk takes a part of the last line."""
    with small_disk(tmp_path / "disk") as disk:
        filling = fill(disk)
        os.truncate(filling, filling.stat().st_size - 4096)
        assert run("text", disk / "log", tmp_path / "log") == 0
        whole = (disk / "log").read_bytes().count(b"\n")
    lost = int((tmp_path / "log").read_text().split("[engine] ")[1].split()[0])
    assert whole > 10 and whole + lost == LINES
