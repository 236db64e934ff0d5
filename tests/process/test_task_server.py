import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from services.process.task_server import COMMAND, DONE, FORK, KILL, LENGTH, RAISED, REPLY, WALL_FACTOR
from tests.e2e.harness import wait_for
from tests.process.test_task_pool import process_state

DEADLINE_SECONDS = 20


@dataclass
class Server:
    control: socket.socket
    process: "subprocess.Popen[bytes]"

    def fork(self, number: int) -> socket.socket:
        own_end, child_end = socket.socketpair()
        own_end.settimeout(DEADLINE_SECONDS)
        with child_end:
            socket.send_fds(self.control, [COMMAND.pack(FORK, number)], [child_end.fileno()])
        return own_end


@contextlib.contextmanager
def running(cpu_seconds: float = 5.0, target: str = "calls") -> Iterator[Server]:
    own_end, child_end = socket.socketpair()
    with own_end, child_end:
        function = f"tests.process.task_functions:{target}"
        numbers = (str(256 * 2**20), str(cpu_seconds), "0")
        process = subprocess.Popen(
            [sys.executable, "-m", "services.process.task_server", str(child_end.fileno()), function, *numbers],
            pass_fds=[child_end.fileno()],
            start_new_session=True,
        )
        child_end.close()
        own_end.sendall(LENGTH.pack(5) + b"setup")
        try:
            yield Server(own_end, process)
        finally:
            own_end.close()
            process.wait(DEADLINE_SECONDS)


def call(worker: socket.socket, payload: bytes) -> tuple[int, bytes]:
    worker.sendall(LENGTH.pack(len(payload)) + payload)
    status, size = REPLY.unpack(received(worker, REPLY.size))
    return status, received(worker, size)


def received(worker: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = worker.recv(size - len(found))
        assert part, "the worker has ended"
        found += part
    return found


def has_ended(worker: socket.socket) -> bool:
    try:
        return worker.recv(1) == b""
    except ConnectionResetError:
        return True


def test_workers_answer_side_by_side_and_end_with_their_socket() -> None:
    with running() as server, server.fork(1) as one, server.fork(2) as other:
        assert call(one, b"setup") == call(other, b"setup") == (DONE, b"setup")
        assert call(one, b"pid") != call(other, b"pid")
        assert call(one, b"unknown") == (RAISED, b"LookupError")
        assert has_ended(one)
        assert call(other, b"count") == (DONE, b"3")


def test_a_kill_ends_the_worker_of_that_number() -> None:
    with running() as server, server.fork(7) as one, server.fork(8) as other:
        call(one, b"pid")
        for unknown in (9, 2**32 - 1):
            server.control.sendall(COMMAND.pack(KILL, unknown))
        server.control.sendall(COMMAND.pack(KILL, 7))
        assert has_ended(one)
        assert call(other, b"count") == (DONE, b"1")


def test_a_call_that_waits_ends_at_the_limit_on_the_clock() -> None:
    with running(cpu_seconds=0.05) as server, server.fork(1) as worker:
        call(worker, b"pid")
        began = time.monotonic()
        worker.sendall(LENGTH.pack(4) + b"wait")
        assert has_ended(worker)
        assert 0.05 < time.monotonic() - began < WALL_FACTOR * 0.05 + 5


def test_the_end_of_the_control_socket_ends_workers_in_the_middle_of_a_call() -> None:
    with running(cpu_seconds=60) as server, server.fork(1) as worker:
        call(worker, b"pid")
        worker.sendall(LENGTH.pack(4) + b"loop")
        server.control.close()
        assert has_ended(worker)
        assert server.process.wait(DEADLINE_SECONDS) != 0


def test_a_half_command_ends_the_server() -> None:
    with running() as server, server.fork(1) as worker:
        call(worker, b"pid")
        server.control.sendall(b"\x00")
        server.control.shutdown(socket.SHUT_WR)
        assert has_ended(worker)
        assert server.process.wait(DEADLINE_SECONDS) != 0


def test_workers_that_end_at_once_leave_the_server_running() -> None:
    with running(target="interrupted_calls") as server:
        for number in range(0, 200, 2):
            with server.fork(number) as one, server.fork(number + 1) as other:
                pids = [int(call(worker, b"pid")[1]) for worker in (one, other)]
                server.process.send_signal(signal.SIGSTOP)
            wait_for(lambda pids=pids: all(process_state(pid) == "Z" for pid in pids), "the workers have ended")
            server.process.send_signal(signal.SIGCONT)
            wait_for(lambda pids=pids: not any(map(process_state, pids)), "they are reaped")
        with server.fork(0) as last:
            assert call(last, b"count") == (DONE, b"1")
