"""A worker that restarts and finds other weight files than the server's first ones refuses them; streams wait."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_qwen3
from tests.e2e.harness import ALL_READY, Server, pid_of, wait_for

LONG: dict[str, Any] = {"prompt": "Which way?", "temperature": 1, "seed": 5, "max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_qwen3(tmp_path_factory.mktemp("model"), hidden_size=256, intermediate_size=1024)
    return path / "model.safetensors"


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[Server]:
    with Server(str(file.parent), "--dtype=float32", "--verify-weights") as running:
        wait_for(lambda: ALL_READY in running.log, "the launcher knows that all are ready")
        yield running


def running_answer(server: Server, pool: ThreadPoolExecutor) -> "Future[dict[str, Any]]":
    """Returns a request that runs. It takes tenths of a second: if a slow look misses it, it is sent again."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        answer = pool.submit(server.complete, **LONG)
        while not answer.done():
            if server.stats().num_running == 1:
                return answer
    raise AssertionError("no request was seen running within 20 s")


def refused_until_put_back(server: Server, file: Path, change: Callable[[Path], None], line: str, *killed: str) -> None:
    """Kills roles under a stream, with the changed file in place, until the log has `line`. The stream has its tokens
    once the former file is back."""
    expected, content = server.complete(**LONG), file.read_bytes()
    with ThreadPoolExecutor(1) as pool:
        answer = running_answer(server, pool)
        change(file)
        for role in killed:
            os.kill(pid_of(server, role), signal.SIGKILL)
        found = wait_for(lambda: [one for one in server.lines if line in one], line, 60)
        assert found[0].startswith("tandem worker: error: the weight file ")
        file.write_bytes(content)
        assert answer.result() == expected


def test_a_file_that_was_cut_is_refused_in_one_line(server: Server, file: Path) -> None:
    size = file.stat().st_size
    line = f"{file} is not whole: it has {size - 100} bytes, but its header says {size}: fetch it again"
    refused_until_put_back(server, file, lambda file: os.truncate(file, size - 100), line, "worker")
    assert "Traceback" not in server.log


def test_other_weights_are_refused_also_if_the_engine_died(server: Server, file: Path) -> None:
    """The engine's successor has not seen the first worker's facts."""

    def change(file: Path) -> None:
        make_qwen3(file.parent, seed=7, hidden_size=256, intermediate_size=1024)

    line = "has changed since this server first loaded it: it has the same size, but another digest of sampled bytes"
    refused_until_put_back(server, file, change, line, "engine", "worker")


def test_verify_weights(server: Server, file: Path) -> None:
    """A bit that no sample has is seen."""

    def change(file: Path) -> None:
        with file.open("r+b") as raw:
            raw.seek(file.stat().st_size * 2 // 3)
            byte = raw.read(1)
            raw.seek(-1, os.SEEK_CUR)
            raw.write(bytes([byte[0] ^ 1]))

    line = "it has the same size, but another digest of all bytes"
    refused_until_put_back(server, file, change, line, "worker")
