import asyncio
import contextlib
import errno
import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.machine import files
from services.machine.files import read
from services.process import task_pool
from services.process.fork_server import ForkServer
from services.process.task_pool import TaskFailed, TaskPool
from services.process.task_server import MAX_GROWTH_BYTES

MAKER = "tests.process.task_functions:calls"
MEMORY = 256 * 2**20
linux_only = pytest.mark.skipif(not files.PROC.exists(), reason="memory is limited on Linux only")


@contextlib.asynccontextmanager
async def running(max_processes: int = 1, **changed: Any) -> AsyncIterator[TaskPool]:
    settings: dict[str, Any] = {"memory_bytes": MEMORY, "cpu_seconds": 5.0} | changed
    server = ForkServer(MAKER, b"the setup", **settings)
    pool = TaskPool(server, max_processes)
    try:
        yield pool
    finally:
        await server.close()
        pool.close()


def process_state(pid: int) -> str:
    """Returns the state's letter in ps; empty: there is no such process."""
    return read(files.PROC / str(pid) / "stat").rpartition(")")[2].strip()[:1]


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while process_state(pid) not in ("", "Z"):  # noqa: ASYNC110 (no event tells of another process's child)
            await asyncio.sleep(0.01)


async def test_a_call_returns_the_result() -> None:
    async with running() as pool:
        large = os.urandom(3 * 2**20)
        assert await pool.run(b"setup") == b"the setup"
        assert await pool.run(b"echo " + large) == large
        assert await pool.run(bytearray(b"echo ")) == b""


async def test_a_worker_serves_many_calls_and_keeps_its_state() -> None:
    async with running() as pool:
        assert await pool.run(b"count") == b"1"
        assert await pool.run(b"count") == b"2"


async def test_calls_wait_in_order_for_a_free_worker() -> None:
    async with running(max_processes=2) as pool:
        answers = await asyncio.gather(*(pool.run(b"pid") for _ in range(12)))
        assert len(set(map(bytes, answers))) <= 2


@pytest.mark.parametrize("endless", [b"loop", b"busy-in-c"])
async def test_the_time_limit_ends_a_call_alone(endless: bytes) -> None:
    """Also one that holds the interpreter in C, which no exception and no signal handler in Python could end."""
    async with running(max_processes=2, cpu_seconds=0.2) as pool:
        await pool.run(b"count")
        began, lags = time.monotonic(), []
        failing = asyncio.create_task(pool.run(endless))
        while not failing.done():
            before = time.monotonic()
            assert await pool.run(b"echo still here") == b"still here"
            lags.append(time.monotonic() - before)
        with pytest.raises(TaskFailed, match="256 MiB of memory and 0.2 s of CPU time"):
            await failing
        assert time.monotonic() - began < 5
        assert len(lags) > 3
        assert await pool.run(b"echo again") == b"again"


@linux_only
async def test_the_memory_limit_ends_a_call_alone() -> None:
    async with running() as pool:
        assert await pool.run(b"allocate 100000000") == b"100000000"
        with pytest.raises(TaskFailed, match="256 MiB of memory"):
            await pool.run(b"allocate 300000000")
        assert await pool.run(b"echo again") == b"again"


async def test_a_worker_that_has_grown_ends_after_its_call() -> None:
    async with running() as pool:
        first = int(await pool.run(b"pid"))
        assert int(await pool.run(b"pid")) == first
        await pool.run(f"allocate {MAX_GROWTH_BYTES + 2**20}".encode())
        await until_gone(first)
        assert int(await pool.run(b"pid")) != first


async def test_a_crash_ends_a_call_alone() -> None:
    async with running() as pool:
        with pytest.raises(TaskFailed):
            await pool.run(b"crash")
        with pytest.raises(TaskFailed, match="LookupError") as caught:
            await pool.run(b"unknown word")
        assert "unknown word" not in str(caught.value)
        assert await pool.run(b"count") == b"1"


async def test_a_cancelled_call_kills_its_worker() -> None:
    async with running(cpu_seconds=60) as pool:
        pid = int(await pool.run(b"pid"))
        call = asyncio.create_task(pool.run(b"wait"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until_gone(pid)
        assert await pool.run(b"echo again") == b"again"


async def test_an_idle_worker_that_was_killed_is_replaced() -> None:
    async with running() as pool:
        pid = int(await pool.run(b"pid"))
        second = await pool._server.new_worker()  # when it answers, the server holds the first one's socket no longer
        await task_pool._called(second.calls, b"pid")
        pool._server.drop(second)
        os.kill(pid, signal.SIGKILL)
        await until_gone(pid)
        assert await pool.run(b"echo again") == b"again"


async def test_a_call_for_which_no_process_could_be_forked_is_made_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit of processes is no fault of the request."""
    monkeypatch.setattr(task_pool, "FORK_AGAIN_SECONDS", 0.01)
    for payload in (b"pid", b"echo " + bytes(2**20)):
        server = ForkServer(f"{MAKER}_of_few_forks", b"", memory_bytes=MEMORY, cpu_seconds=5.0)
        pool = TaskPool(server, 2)
        assert await pool.run(b"pid")
        busy = asyncio.create_task(pool.run(b"slow x"))
        await asyncio.sleep(0)
        assert await pool.run(payload)
        assert await busy == b"x"
        await server.close()
        pool.close()
    assert "no process could be forked for a call ([Errno 11] Resource temporarily unavailable)" in caplog.text


@pytest.mark.parametrize(
    ("module", "name", "successes"),
    [(socket, "socketpair", 0), (socket, "socketpair", 1), (subprocess, "Popen", 0)],
    ids=["the server's socket", "the worker's socket", "the server process"],
)
async def test_a_call_for_which_the_system_refuses_a_socket_or_the_server_process_is_made_again(
    module: Any, name: str, successes: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_pool, "FORK_AGAIN_SECONDS", 0.01)
    original, calls = getattr(module, name), itertools.count()

    def refuse_one(*args: Any, **options: Any) -> Any:
        if next(calls) == successes:
            raise OSError(errno.EMFILE, "Too many open files")
        return original(*args, **options)

    async with running() as pool:
        monkeypatch.setattr(module, name, refuse_one)
        assert await pool.run(b"echo again") == b"again"
    assert "no process could be forked for a call ([Errno 24] Too many open files); it is made again" in caplog.text


async def test_a_killed_server_process_is_started_again() -> None:
    async with running() as pool:
        await pool.run(b"pid")
        pid = pool._server.pid
        os.kill(pid, signal.SIGKILL)
        await until_gone(pid)
        assert await pool.run(b"echo again") == b"again"


async def test_a_call_that_lost_its_server_process_is_made_again() -> None:
    """No limit ended it, so its caller hears nothing of it."""
    async with running() as pool:
        pid = int(await pool.run(b"pid"))
        call = asyncio.create_task(pool.run(b"slow but sure"))
        await asyncio.sleep(0)
        os.killpg(pool._server.pid, signal.SIGKILL)
        assert await call == b"but sure"
        assert int(await pool.run(b"pid")) != pid


async def test_close_leaves_no_process() -> None:
    async with running(cpu_seconds=60) as pool:
        pid = int(await pool.run(b"pid"))
        call = asyncio.create_task(pool.run(b"wait"))
        await asyncio.sleep(0)
        await pool._server.close()
        with pytest.raises(TaskFailed):
            await call
        await until_gone(pid)


async def test_workers_give_way_and_know_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", "secret")
    monkeypatch.setenv("LANGUAGE", "en")
    async with running(nice=7) as pool:
        assert await pool.run(b"nice") == str(os.nice(0) + 7).encode()
        assert await pool.run(b"variable TANDEM_API_KEY") == b"absent"
        assert await pool.run(b"variable LANGUAGE") == b"en"


async def test_a_wrong_target_fails_in_words() -> None:
    server = ForkServer("tests.process.nowhere:f", b"", memory_bytes=MEMORY, cpu_seconds=1)
    with pytest.raises(TaskFailed):
        await TaskPool(server, 1).run(b"echo")
    await server.close()


async def test_calls_of_a_stopped_server_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one other server: the first call that ends it must not end that of the others, too."""
    monkeypatch.setattr(task_pool, "START_SECONDS", 2.0)
    async with running(4, cpu_seconds=0.2) as pool:
        stopped, idle = int(await pool.run(b"server")), int(await pool.run(b"pid"))
        os.kill(stopped, signal.SIGSTOP)
        os.kill(idle, signal.SIGKILL)  # it could answer all calls without the server
        await until_gone(idle)
        answers = await asyncio.gather(*(pool.run(f"echo {number}".encode()) for number in range(1, 8)))
        assert answers == [str(number).encode() for number in range(1, 8)]
        assert int(await pool.run(b"server")) != stopped
