"""The processes of `tandem serve`: how fast they start, what each one loads, how they restart and how they end."""

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from services.machine.freed_memory import SETTINGS, VARIABLE
from services.options.declarations import ROLES
from services.process.child_processes import STOP_SECONDS
from tests.checkpoints import make_qwen3
from tests.e2e.harness import ALL_READY, TANDEM, Server, alive, argv_of, children_of, error_lines, role_of, wait_for

READY_SECONDS = 10.0
END_SECONDS = 5.0


def wait_until_ended(pids: list[int], deadline: float) -> None:
    wait_for(lambda: not any(map(alive, pids)), f"end of {pids}", deadline - time.monotonic())


@contextlib.contextmanager
def streams(server: Server, count: int) -> Iterator[None]:
    """Streams `count` answers while entered. At exit their connections must end."""
    begun = [threading.Event() for _ in range(count)]
    readers = [threading.Thread(target=_read, args=(server.url, event), daemon=True) for event in begun]
    for reader in readers:
        reader.start()
    for event in begun:
        assert event.wait(20), "no first chunk"
    assert not begun or server.stats().num_running == count
    yield
    for reader in readers:
        reader.join(END_SECONDS)
        assert not reader.is_alive(), "a stream has not ended"


def _read(url: str, begun: threading.Event) -> None:
    body = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with (
        contextlib.suppress(httpx.HTTPError),
        httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60, trust_env=False) as response,
    ):
        for _ in response.iter_lines():
            begun.set()


@pytest.fixture(scope="module")
def demo_server() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_ready_soon_after_the_start(demo_server: Server) -> None:
    assert demo_server.start_seconds < READY_SECONDS


def test_one_process_per_role(demo_server: Server) -> None:
    assert sorted(map(role_of, demo_server.pids)) == sorted(ROLES)
    for pid in demo_server.pids:
        children = [" ".join(argv_of(child)) for child in children_of(pid)]
        if role_of(pid) in ("shim", "tokenizer"):  # workers for bodies and for chats are children of this one
            assert len(children) == 1 and "services.process.task_server" in children[0]
        else:
            assert children == []


def test_only_the_worker_loads_torch(demo_server: Server) -> None:
    demo_server.complete("Hello", max_tokens=2, logprobs=1)
    assert demo_server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}).is_success
    with_torch = [role_of(pid) for pid in demo_server.pids if "libtorch" in Path(f"/proc/{pid}/maps").read_text()]
    assert with_torch == ["worker"]
    assert "libtorch" not in Path(f"/proc/{demo_server.process.pid}/maps").read_text()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_every_process_starts_with_an_allocator_that_keeps_little(demo_server: Server) -> None:
    def and_below(pid: int) -> list[int]:
        return [pid, *(one for child in children_of(pid) for one in and_below(child))]

    pids = and_below(demo_server.process.pid)
    assert len(pids) > len(ROLES)
    for pid in pids:
        environment = Path(f"/proc/{pid}/environ").read_text()
        assert VARIABLE in environment and all(f"{name}=" in environment for name in SETTINGS), argv_of(pid)


def test_ctrl_c_reaches_the_launcher_alone(demo_server: Server) -> None:
    """A terminal sends SIGINT to a whole process group: were the children in it, they would end in any order."""
    assert all(os.getsid(pid) == pid for pid in demo_server.pids)
    assert os.getsid(demo_server.process.pid) == os.getsid(0)


@pytest.mark.parametrize(("number", "count"), [(signal.SIGTERM, 0), (signal.SIGTERM, 3), (signal.SIGINT, 3)])
def test_a_signal_ends_every_process(number: signal.Signals, count: int) -> None:
    """Answers that take longer than the shutdown may are cut; test_drain.py waits for those that end in time."""
    with Server("--shutdown-timeout=1") as server, streams(server, count):
        deadline = time.monotonic() + END_SECONDS
        server.process.send_signal(number)
        assert server.process.wait(END_SECONDS) == 0, server.log
        wait_until_ended(server.pids, deadline)
    assert "Traceback" not in server.log and "ERROR" not in server.log and "error:" not in server.log, server.log


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_every_process_at_once(second: signal.Signals) -> None:
    """The worker, which is stopped, handles no SIGTERM: the launcher would wait for it."""
    with Server() as server:
        os.kill(next(pid for pid in server.pids if role_of(pid) == "worker"), signal.SIGSTOP)
        server.process.terminate()
        wait_for(lambda: sum(map(alive, server.pids)) < len(server.pids), "the shutdown has begun")
        began = time.monotonic()
        server.process.send_signal(second)
        assert server.process.wait(END_SECONDS) == 0, server.log
        assert time.monotonic() - began < STOP_SECONDS / 2
        wait_until_ended(server.pids, time.monotonic() + END_SECONDS)
        assert not Path(server.runtime_dir, "engine.sock").exists() and "Traceback" not in server.log


def test_a_signal_ends_every_process_while_they_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen([*TANDEM, "serve", "--port=0"], stderr=stderr)
        try:
            pids = wait_for(lambda: len(found := children_of(process.pid)) == len(ROLES) and found, "four children")
            deadline = time.monotonic() + END_SECONDS
            process.terminate()
            assert process.wait(END_SECONDS) == 0, log.read_text()
            wait_until_ended(pids, deadline)
        finally:
            process.kill()
            process.wait()
    assert "ready on" not in log.read_text()


def test_nothing_outlives_a_killed_launcher() -> None:
    with Server() as server, streams(server, 2):
        deadline = time.monotonic() + END_SECONDS
        server.process.kill()
        wait_until_ended([server.process.pid, *server.pids], deadline)


@pytest.mark.parametrize("role", ROLES)
def test_a_process_that_dies_before_all_are_ready_ends_all(tmp_path: Path, role: str) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen([*TANDEM, "serve", "--port=0"], stderr=stderr)
        try:
            pids = wait_for(lambda: len(found := children_of(process.pid)) == len(ROLES) and found, "four children")
            wait_for(lambda: {role_of(pid) for pid in pids} == set(ROLES), "all have called exec")
            os.kill(next(pid for pid in pids if role_of(pid) == role), signal.SIGKILL)
            assert process.wait(3 * END_SECONDS) == 1, log.read_text()
            wait_until_ended(pids, time.monotonic() + END_SECONDS)
        finally:
            process.kill()
            process.wait()
    ended = f"the {role} was killed by SIGKILL before the server was ready; all processes are stopped"
    assert error_lines(log.read_text()) == [f"tandem serve: error: {ended}"]
    assert "Traceback" not in log.read_text()


def test_a_process_that_dies_is_restarted_with_a_backoff_that_a_token_resets() -> None:
    """The shim: its connections are lost, but new ones are served."""
    with Server() as server:
        wait_for(lambda: ALL_READY in server.log, "all are ready")
        for count in (1, 2, 3):
            victim = next(pid for pid in children_of(server.process.pid) if role_of(pid) == "shim")
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda count=count: server.log.count("ready on") == count + 1, "ready again")
            if count == 2:
                assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
        found = re.findall(r"the shim was killed by SIGKILL; it is restarted in (.*) s", server.log)
        assert found == ["0.0", "0.5", "0.0"]
        server.pids = children_of(server.process.pid)
    assert not any(map(alive, server.pids))


def test_running_requests_get_an_error_when_the_server_stops(tmp_path: Path) -> None:
    """In the OpenAI API's form: status 503 for a whole answer, an error event in a stream."""
    body = {"prompt": "a", "ignore_eos": True, "max_tokens": 2000}
    with (
        Server(str(make_qwen3(tmp_path / "model", max_position_embeddings=4096)), "--shutdown-timeout=0") as server,
        ThreadPoolExecutor() as pool,
    ):
        whole = pool.submit(server.post, "/v1/completions", body)
        stream = pool.submit(server.post, "/v1/completions", {**body, "stream": True})
        wait_for(lambda: server.stats().num_running == 2 and server.stats().num_steps > 50, "both run")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0
        assert whole.result().status_code == 503
        assert whole.result().json()["error"]["message"] == "the server is stopping"
        *_, last = [line for line in stream.result().text.splitlines() if line]
        assert json.loads(last.removeprefix("data: "))["error"]["message"] == "the server is stopping"
