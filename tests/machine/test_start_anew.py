"""A program starts itself anew once, as the same process, and goes on where a second start would not be the same."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.machine.freed_memory import VARIABLE as HEAP
from services.machine.start_anew import VARIABLE
from tests.e2e.harness import wait_for

PROGRAM = """import os, sys, threading
from services.machine.start_anew import start_anew
print("start", sys.argv[1:], os.environ.get("ADDED"), flush=True)
given = sys.argv[1:]
if "change" in given:
    sys.argv = [sys.argv[0], "--port=1"]
    given = sys.argv[1:]
if os.environ.pop("ADDED", None) is None or "again" in given:
    size = 200_000 if "large" in given else 1
    print(start_anew(given, [text for text in given if "secret" not in text], {"ADDED": "x" * size}), flush=True)
if "wait" in given:
    print(sys.flags.utf8_mode, flush=True)
    threading.Event().wait()
"""
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != HEAP} | {
    "PYTHONPATH": os.pathsep.join(sys.path)
}


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def run(*argv: str, **options: Any) -> list[str]:
    """Runs a program with Python. Returns its lines."""
    options = {"env": ENVIRONMENT, "executable": sys.executable} | options
    ended = subprocess.run(argv, text=True, capture_output=True, timeout=60, check=True, **options)
    return ended.stdout.splitlines()


def test_it_starts_with_other_arguments_and_variables(program: str) -> None:
    assert run(sys.executable, program, "a", "--secret") == ["start ['a', '--secret'] None", "start ['a'] x"]
    lines = run(sys.executable, "-c", PROGRAM, "a")
    assert lines == ["start ['a'] None", "start ['a'] x"]


def test_the_process_stays_the_same(program: str) -> None:
    """Its pid, its interpreter's flags, its inherited descriptors."""
    reader, writer = os.pipe()
    argv = [sys.executable, "-X", "utf8", program, "wait", "--secret"]
    with subprocess.Popen(argv, env=ENVIRONMENT, pass_fds=[writer], stdout=subprocess.PIPE, text=True) as process:
        os.close(writer)
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            assert lines == ["start ['wait', '--secret'] None\n", "start ['wait'] x\n", "1\n"]
            folder = Path(f"/proc/{process.pid}")
            assert b"secret" not in (folder / "cmdline").read_bytes()
            assert b"\0ADDED=x\0" in b"\0" + (folder / "environ").read_bytes()
            wait_for(lambda: (folder / f"fd/{writer}").exists(), "the pipe is still open", 1)
        finally:
            process.kill()
    os.close(reader)


def test_it_starts_anew_only_once(program: str) -> None:
    """Something at the start of Python may take the variables away."""
    lines = run(sys.executable, program, "again")
    assert lines == ["start ['again'] None", "start ['again'] x", "it was started anew already"]
    environment = {**ENVIRONMENT, VARIABLE: str(os.getpid())}  # inherited: another process has done so
    assert len(run(sys.executable, program, env=environment)) == 2


@pytest.mark.parametrize(
    ("argv", "options", "reason"),
    [
        (["python", "PROGRAM", "change"], {}, "its arguments are not those of its process"),
        (["no-such-name", "PROGRAM", "a"], {}, "its interpreter is not known"),
        (["PROGRAM", "PROGRAM", "a"], {}, "its interpreter is not PROGRAM"),
        (["python", "PROGRAM", "large"], {}, "the interpreter could not be executed: [Errno 7] Argument list too long"),
    ],
)
def test_it_goes_on_where_it_cannot(program: str, argv: list[str], options: dict[str, Any], reason: str) -> None:
    Path(program).chmod(0o755)
    words = [word.replace("PROGRAM", program) for word in argv]
    words[0] = sys.executable if words[0] == "python" else words[0]
    started, why = run(*words, **options)
    assert started == f"start {words[2:]} None"
    assert why.startswith(reason.replace("PROGRAM", program))
