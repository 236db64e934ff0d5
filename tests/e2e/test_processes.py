"""The tree of processes: how fast it starts, what each process loads, how it ends, and the one line when it cannot."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from services.machine import MAX_SOCKET_PATH
from services.options.declarations import ROLES
from tests.addresses import at, open_server
from tests.checkpoints import make_qwen3
from tests.e2e.harness import TANDEM, Server, alive, children_of, run_tandem, wait_for

READY_SECONDS = 10.0
END_SECONDS = 5.0
HELP_SECONDS = 0.5
WATCHING = "a process that exits is restarted"


def argv_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def role_of(pid: int) -> str:
    """`python -m services.cli ROLE ...`; empty between fork and exec."""
    return "".join(argv_of(pid)[3:4])


def wait_until_ended(pids: list[int], deadline: float) -> None:
    wait_for(lambda: not any(map(alive, pids)), f"end of {pids}", deadline - time.monotonic())


@contextlib.contextmanager
def streams(server: Server, count: int) -> Iterator[None]:
    """That many answers are being streamed; afterwards their connections must have ended."""
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
    assert all(children_of(pid) == [] for pid in demo_server.pids)


def test_only_the_worker_loads_torch(demo_server: Server) -> None:
    demo_server.complete("Hello", max_tokens=2, logprobs=1)
    assert demo_server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}).is_success
    with_torch = [role_of(pid) for pid in demo_server.pids if "libtorch" in Path(f"/proc/{pid}/maps").read_text()]
    assert with_torch == ["worker"]
    assert "libtorch" not in Path(f"/proc/{demo_server.process.pid}/maps").read_text()


def test_ctrl_c_reaches_the_launcher_alone(demo_server: Server) -> None:
    """A terminal sends SIGINT to a whole process group: were the children in it, they would end in any order."""
    assert all(os.getsid(pid) == pid for pid in demo_server.pids)
    assert os.getsid(demo_server.process.pid) == os.getsid(0)


@pytest.mark.parametrize(("number", "count"), [(signal.SIGTERM, 0), (signal.SIGTERM, 3), (signal.SIGINT, 3)])
def test_a_signal_ends_every_process(number: signal.Signals, count: int) -> None:
    with Server() as server, streams(server, count):
        deadline = time.monotonic() + END_SECONDS
        server.process.send_signal(number)
        assert server.process.wait(END_SECONDS) == 0, server.log
        wait_until_ended(server.pids, deadline)
    assert "Traceback" not in server.log and "ERROR" not in server.log and "error:" not in server.log, server.log


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
def test_a_death_before_the_tree_is_ready_ends_it_and_is_told(tmp_path: Path, role: str) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen([*TANDEM, "serve", "--port=0"], stderr=stderr)
        try:
            pids = wait_for(lambda: len(found := children_of(process.pid)) == len(ROLES) and found, "four children")
            wait_for(lambda: {role_of(pid) for pid in pids} == set(ROLES), "they are what they will be")
            os.kill(next(pid for pid in pids if role_of(pid) == role), signal.SIGKILL)
            assert process.wait(3 * END_SECONDS) == 1, log.read_text()
            wait_until_ended(pids, time.monotonic() + END_SECONDS)
        finally:
            process.kill()
            process.wait()
    ended = f"the {role} was killed by SIGKILL before the server was ready; all processes are stopped"
    assert error_lines(log.read_text()) == [f"tandem serve: error: {ended}"]
    assert "Traceback" not in log.read_text()


def test_a_dead_child_starts_again_and_later_ones_wait_longer() -> None:
    """The front too: its clients are lost, new ones are not."""
    with Server() as server:
        wait_for(lambda: WATCHING in server.log, "the launcher knows that all are ready")
        for count in (1, 2):
            victim = next(pid for pid in children_of(server.process.pid) if role_of(pid) == "shim")
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda count=count: server.log.count("ready on") == count + 1, "ready again")
            assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
        assert re.findall(r"the shim was killed by SIGKILL; it is restarted in (.*) s", server.log) == ["0.0", "0.5"]
        server.pids = children_of(server.process.pid)
    assert not any(map(alive, server.pids))


def error_lines(log: str) -> list[str]:
    """Those for people, which are not in the format of the log."""
    return [line for line in log.splitlines() if re.match(r"tandem( \w+)?: error: ", line)]


def refusal(folder: Path, *args: str, status: int = 1) -> str:
    """The only error line of a command that cannot go on and leaves nothing behind: no process, no file."""
    temporary = folder / "tmp"
    temporary.mkdir()
    ended = run_tandem(*args, env={"TMPDIR": str(temporary)}, seconds=30)
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == "" and "Traceback" not in ended.stderr, ended.stderr
    assert list(temporary.iterdir()) == []
    assert [pid for pid in _own_pids() if str(temporary) in " ".join(argv_of(pid))] == []
    said = error_lines(ended.stderr)
    assert len(said) == 1, ended.stderr
    return said[0]


def _own_pids() -> list[int]:
    """Every process of this machine that this user may look at."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            (folder / "cmdline").read_text()
            found.append(int(folder.name))
    return found


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with open_server() as taken:
        port = taken.getsockname()[1]
        line = refusal(tmp_path, "serve", f"--port={port}")
    assert line == f"tandem serve: error: cannot listen on {at(port)}: Address already in use"


def test_a_runtime_dir_that_cannot_be_used_is_refused(socket_dir: Path, demo_server: Server) -> None:
    (socket_dir / "file").touch()
    for folder, said in (
        (demo_server.runtime_dir, "another server uses"),
        (socket_dir / "file", "cannot be used: File exists"),
        (socket_dir / ("x" * 100), f"a path of more than {MAX_SOCKET_PATH} bytes"),
        (socket_dir / "a,b", "cannot contain the character ','"),
    ):
        done = run_tandem("serve", "--port=0", f"--runtime-dir={folder}")
        (line,) = done.stderr.strip().splitlines()
        assert done.returncode == 1 and line.startswith("tandem serve: error: --runtime-dir: ") and said in line
    assert demo_server.stats().num_blocks > 0, "the first server keeps its sockets"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nonsense"], "tandem: error: unknown command 'nonsense'; the commands are serve, shim, "),
        (["serve", "--nonsense=1"], "tandem serve: error: unrecognized arguments: --nonsense=1"),
        (["serve", "--port=high"], "tandem serve: error: --port: 'high' is not valid"),
        (["worker", "--listen-fd=3"], "tandem worker: error: unrecognized arguments: --listen-fd=3"),
    ],
)
def test_a_wrong_command_line_is_refused(tmp_path: Path, args: list[str], said: str) -> None:
    assert refusal(tmp_path, *args, status=2).startswith(said)


def _missing(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def _without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": [')


def _other_architecture(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("Qwen3ForCausalLM", "GPT2LMHeadModel"))


def _broken_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no safetensors")


def _broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "role", "said"),
    [
        (_missing, "serve", "there is no model directory {}"),
        (_without_config, "serve", "{} has no config.json"),
        (_without_weights, "worker", "{} has no weights to load"),
        (_broken_config, "worker", "cannot read {}/config.json"),
        (_other_architecture, "worker", "config.json: architectures ['GPT2LMHeadModel'] are not supported"),
        (_broken_weights, "worker", "cannot read the weights in {}"),
        (_broken_tokenizer, "tokenizer", "tokenizer.json"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], role: str, said: str
) -> None:
    """By whoever finds out; the launcher's own end is a log line."""
    folder = make_qwen3(tmp_path / "model")
    damage(folder)
    line = refusal(tmp_path, "serve", str(folder), "--port=0")
    assert line.startswith(f"tandem {role}: error: ") and said.format(folder) in line


@pytest.mark.parametrize(
    ("args", "role", "said"),
    [
        ([f"--chat-template={'{% if %}' * 50}"], "tokenizer", "the chat template is not valid"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, args: list[str], role: str, said: str) -> None:
    line = refusal(tmp_path, "serve", "--port=0", *args)
    assert line.startswith(f"tandem {role}: error: ") and said in line


def test_who_still_waits_when_the_end_comes_is_told(tmp_path: Path) -> None:
    """In OpenAI's shape: a whole answer as a 503, a stream with an error event."""
    body = {"prompt": "a", "ignore_eos": True, "max_tokens": 2000}
    with (
        Server(str(make_qwen3(tmp_path / "model", max_position_embeddings=4096))) as server,
        ThreadPoolExecutor() as pool,
    ):
        whole = pool.submit(server.post, "/v1/completions", body)
        stream = pool.submit(server.post, "/v1/completions", {**body, "stream": True})
        wait_for(lambda: server.stats().num_running == 2 and server.stats().num_steps > 50, "both run")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0
        assert whole.result().status_code == 503
        assert whole.result().json()["error"]["message"] == "the server is stopping"
        *_, last, _ = [line for line in stream.result().text.splitlines() if line]
        assert json.loads(last.removeprefix("data: "))["error"]["message"] == "the server is stopping"


def test_an_option_that_no_command_line_holds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text(f"chat-template: '{{% {'x' * 200_000} %}}'")
    line = refusal(tmp_path, "serve", "--port=0", f"--config={tmp_path / 'options.yaml'}")
    assert line.startswith("tandem serve: error: the tokenizer cannot be started: ")


@pytest.mark.parametrize("args", [["--help"], ["serve", "--help"], ["--version"]], ids=" ".join)
def test_help_answers_at_once(args: list[str]) -> None:
    def seconds() -> float:
        started = time.monotonic()
        assert run_tandem(*args).returncode == 0
        return time.monotonic() - started

    wait_for(lambda: seconds() < HELP_SECONDS, f"an answer in {HELP_SECONDS} s")  # while others compute, later


@pytest.mark.parametrize("args", [["--help"], ["serve", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    argv = [sys.executable, "-X", "importtime", *TANDEM[1:], *args]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rsplit("|", 1)[1].strip() for line in ended.stderr.splitlines() if "|" in line}
    assert "services.options.declarations" in imported
    assert imported & {"torch", "grpc", "zmq", "uvicorn", "huggingface_hub", "yaml", "numpy"} == set()
