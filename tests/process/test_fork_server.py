import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator

import pytest

from services.process.fork_server import ForkServer, ServerDied, Worker
from services.process.task_pool import TaskFailed, TaskPool

MAKER = "tests.process.task_functions:calls"
MEMORY = 256 * 2**20


@pytest.fixture
async def server() -> AsyncIterator[ForkServer]:
    made = ForkServer(MAKER, b"the setup", memory_bytes=MEMORY, cpu_seconds=60)
    yield made
    await made.close()


def has_pid(pid: int) -> bool:
    """Returns whether a process has this pid, be it a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until_reaped(pid: int) -> None:
    async with asyncio.timeout(10):
        while has_pid(pid):  # noqa: ASYNC110 (no event tells of another object's child)
            await asyncio.sleep(0.01)


def ended(calls: socket.socket) -> bool:
    calls.settimeout(10)
    with calls:
        return calls.recv(1) == b""


async def test_a_worker_has_the_server_until_it_is_killed(server: ForkServer) -> None:
    assert server.pid == 0
    worker = await server.new_worker()
    assert server.has(worker)
    await server.kill(worker)
    assert ended(worker.calls)
    assert not server.has(worker) and server.pid == 0
    await server.start()
    pid = server.pid
    assert pid and not server.has(worker)
    await server.kill(worker)
    assert server.pid == pid, "another server's worker tells nothing about this one"


async def test_a_server_that_has_ended_has_no_worker(server: ForkServer) -> None:
    """Also none that was ordered just after its end: a call of it is made again."""
    own_end, other_end = socket.socketpair()
    with own_end, other_end:
        assert not server.has(Worker(server.pid, 1, own_end))


async def test_starting_twice_starts_one_process(server: ForkServer) -> None:
    await asyncio.gather(server.start(), server.start())
    pid = server.pid
    await server.start()
    assert server.pid == pid


async def test_a_server_that_is_killed_leaves_no_zombie_and_the_next_one_starts(server: ForkServer) -> None:
    await server.start()
    pid = server.pid
    os.kill(pid, signal.SIGKILL)
    await until_reaped(pid)
    worker = await server.new_worker()
    assert server.has(worker) and server.pid != pid
    server.drop(worker)


async def test_drop_ends_one_worker_alone(server: ForkServer) -> None:
    first, second = await server.new_worker(), await server.new_worker()
    copy = first.calls.dup()
    server.drop(first)
    assert ended(copy)
    with pytest.raises(BlockingIOError), second.calls:
        second.calls.recv(1)


async def test_a_server_that_was_closed_forks_no_more(server: ForkServer) -> None:
    worker = await server.new_worker()
    await server.close()
    assert ended(worker.calls)
    with pytest.raises(ServerDied):
        await server.new_worker()
    assert server.pid == 0
    with pytest.raises(TaskFailed):
        await TaskPool(server, 1).run(b"echo")


@pytest.fixture
async def pools(server: ForkServer) -> AsyncIterator[list[TaskPool]]:
    made = [TaskPool(server, 1), TaskPool(server, 1)]
    yield made
    await server.close()
    for pool in made:
        pool.close()


async def test_pools_of_one_server_share_its_process_and_no_worker(pools: list[TaskPool]) -> None:
    pids = [int(await pool.run(b"pid")) for pool in pools for _ in range(2)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert os.getpgid(pids[0]) == os.getpgid(pids[2])
    hanging = asyncio.create_task(pools[0].run(b"wait"))
    await asyncio.sleep(0)
    assert await pools[1].run(b"echo still here") == b"still here"
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def test_a_call_of_one_pool_is_made_again_when_another_one_kills_the_server(
    server: ForkServer, pools: list[TaskPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the server process ends after its workers."""
    await pools[1].run(b"pid")
    process = server._process
    assert process is not None
    wait = process.wait
    monkeypatch.setattr(process, "poll", lambda: None)
    monkeypatch.setattr(process, "wait", lambda: time.sleep(0.1) or wait())
    call = asyncio.create_task(pools[0].run(b"slow but sure"))
    await asyncio.sleep(0)
    worker = await server.new_worker()
    await server.kill(worker)
    assert ended(worker.calls)
    assert await pools[1].run(b"echo again") == b"again"
    assert await call == b"but sure"


async def test_a_start_that_is_cancelled_leaves_no_server_with_half_a_setup() -> None:
    server = ForkServer(MAKER, bytes(2**20), memory_bytes=MEMORY, cpu_seconds=60)
    starting = asyncio.create_task(server.start())
    async with asyncio.timeout(10):
        while not server.pid:  # noqa: ASYNC110 (the socket takes the setup only once Python has started there)
            await asyncio.sleep(0)
    pid = server.pid
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert server.pid == 0 and not has_pid(pid)
    pool = TaskPool(server, 1)
    assert await pool.run(b"setup") == bytes(2**20)
    await server.close()
    pool.close()
