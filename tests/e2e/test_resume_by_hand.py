"""The program of docs/grpc.md that resumes by hand, with stubs of its own, while tokenizer and engine are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.clients.page import sections
from tests.e2e.harness import ALL_READY, Server, children_of, role_of, wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """Returns the command of the program, in a folder with the stubs."""
    stubs = sections()["Python with grpcio alone"].commands[0][0].split()
    protos = [str(proto) for proto in sorted((ROOT / "protos/tandem/v1").glob("*.proto"))]
    command = [sys.executable, *stubs[1:-1], *protos]
    subprocess.run([str(ROOT / "protos") if word == "protos" else word for word in command], cwd=tmp_path, check=True)
    (tmp_path / "resume.py").write_text(sections()["Resuming by hand"].files["resume.py"])
    return [sys.executable, str(tmp_path / "resume.py")]


def read_characters(out: IO[str], count: int) -> str:
    return "".join(out.read(1) for _ in range(count))


def test_an_answer_goes_on_after_deaths(program: list[str]) -> None:
    with Server() as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        command = [*program, f"unix:{server.runtime_dir}/tokenizer-0.sock"]
        expected = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        assert expected.endswith("\n400 tokens\n")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found = ""
            for role in ("tokenizer", "engine", "tokenizer"):
                found += read_characters(process.stdout, 60)
                (pid,) = [pid for pid in children_of(server.process.pid) if role_of(pid) == role]
                os.kill(pid, signal.SIGKILL)
            found += process.stdout.read()
        assert (process.returncode, found) == (0, expected)
        wait_for(lambda: server.log.count("was killed by SIGKILL") == 3, "every death is logged")
