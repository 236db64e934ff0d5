import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.process.task_server import COMMAND, DONE, FORK, KILL, LENGTH, NO_WORKER, RAISED, REPLY, WALL_FACTOR
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
def running(
    cpu_seconds: float = 5.0, target: str = "calls", before: Sequence[str] = (), descriptor: int = 0
) -> Iterator[Server]:
    """`before`: of the command line; `descriptor`: of the control socket; 0: any."""
    own_end, child_end = socket.socketpair()
    with own_end, child_end:
        function = f"tests.process.task_functions:{target}"
        numbers = (str(256 * 2**20), str(cpu_seconds), "0")
        number = os.dup2(child_end.fileno(), descriptor) if descriptor else child_end.fileno()
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "services.process.task_server", str(number), function, *numbers],
            pass_fds=[number],
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if descriptor:
            os.close(descriptor)
        child_end.close()
        own_end.sendall(LENGTH.pack(5) + b"setup")
        try:
            yield Server(own_end, process)
        finally:
            own_end.close()
            process.wait(DEADLINE_SECONDS)
            assert process.stderr is not None
            process.stderr.close()


def call(worker: socket.socket, payload: bytes) -> tuple[int, bytes]:
    with contextlib.suppress(BrokenPipeError):  # as TaskPool: the answer that there is no worker may come before
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


def test_a_control_socket_may_have_a_large_descriptor() -> None:
    """A role with a thousand connections starts its task server anew."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        with running(descriptor=1500) as server, server.fork(1) as worker:
            assert call(worker, b"count") == (DONE, b"1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_inherited_signal_masks_count_for_nothing() -> None:
    """Blocked ones stay so when a program is executed: SIGCHLD would never come, and no call would reach its limit."""
    signals = {signal.SIGCHLD, signal.SIGPROF, signal.SIGALRM}
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        with running(cpu_seconds=0.1) as server, server.fork(1) as one, server.fork(2) as other:
            pids = [int(call(worker, b"pid")[1]) for worker in (one, other)]
            one.sendall(LENGTH.pack(4) + b"loop")
            other.sendall(LENGTH.pack(4) + b"wait")
            assert has_ended(one) and has_ended(other)
            wait_for(lambda: not any(map(process_state, pids)), "they are reaped")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def test_ignored_signals_of_time_limits_are_not_ignored() -> None:
    ignoring = ["env", "--ignore-signal=PROF", "--ignore-signal=ALRM"]
    with running(cpu_seconds=0.1, before=ignoring) as server, server.fork(1) as one, server.fork(2) as other:
        one.sendall(LENGTH.pack(4) + b"loop")
        other.sendall(LENGTH.pack(4) + b"wait")
        assert has_ended(one) and has_ended(other)


def test_a_child_of_the_program_before_is_reaped_as_well() -> None:
    shell = ["/bin/sh", "-c", 'sleep 0.3 & echo $! >&2; exec "$@"', "sh"]
    with running(before=shell) as server, server.fork(1) as worker:
        assert server.process.stderr is not None
        child = int(server.process.stderr.readline())
        call(worker, b"pid")
        server.fork(2).close()
        wait_for(lambda: not process_state(child), "it is reaped")
        with server.fork(3) as another:
            assert call(another, b"count") == (DONE, b"1")


def test_a_fork_that_fails_costs_no_other_call() -> None:
    with running(target="calls_of_few_forks") as server, server.fork(1) as one:
        call(one, b"pid")
        with server.fork(2) as refused:
            text = b"[Errno 11] Resource temporarily unavailable"
            assert call(refused, b"pid") == (NO_WORKER, text) and has_ended(refused)
        with server.fork(3) as other:
            assert call(other, b"count") == (DONE, b"1") and call(one, b"count") == (DONE, b"2")


def test_a_fork_that_fails_for_a_caller_that_has_left_costs_nothing() -> None:
    with running(target="calls_of_few_forks") as server, server.fork(1) as one:
        call(one, b"pid")
        server.process.send_signal(signal.SIGSTOP)
        server.fork(2).close()
        server.process.send_signal(signal.SIGCONT)
        with server.fork(3) as other:
            assert call(other, b"count") == (DONE, b"1")


def test_a_server_without_a_setup_ends_in_silence() -> None:
    own_end, child_end = socket.socketpair()
    with own_end, child_end:
        argv = [sys.executable, "-m", "services.process.task_server", str(child_end.fileno()), "a:b", "1", "1", "0"]
        own_end.sendall(LENGTH.pack(5) + b"set")
        process = subprocess.Popen(argv, pass_fds=[child_end.fileno()], stderr=subprocess.PIPE)
        child_end.close()
        own_end.close()
        assert process.communicate(timeout=DEADLINE_SECONDS)[1] == b"" and process.returncode == 0


def test_a_worker_that_cannot_begin_ends() -> None:
    """It must not go on as a second server."""
    with running(target="calls_without_files") as server, server.fork(1) as worker:
        assert has_ended(worker)
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        wait_for(lambda: not children.read_text().split(), "its end")
