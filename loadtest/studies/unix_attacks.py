"""`python -m loadtest.studies.unix_attacks TREE`: effects of attacks by a peer on the Unix sockets.

Serves the demo model from the checkout TREE and prints one line for each attack. Run it on two trees to compare them.
The sockets are in a directory of mode 0700, so the attacking peer runs as the server's user.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import zmq

from services.options.setting import split_address
from services.rpc.generated.engine_pb2_grpc import EngineServiceStub
from services.rpc.hello import make_hello
from tests.e2e.harness import PLAIN_HTTP, Server
from tests.security.peers import zmq_socket

NUM_FRAMES, NUM_CLIENTS, NUM_DEATHS = 1000, 16, 4
LARGE_FRAME_BYTES = 300_000_000
MALFORMED = b"\xc1"
NOT_UTF8 = b"\x81\xa4type\xa2\xff\xfe"
SETTLE_SECONDS = 3.0  # time for the engine to read what was sent
REQUEST_SECONDS = 10.0


def request_time(server: Server, seconds: float = REQUEST_SECONDS) -> str:
    """Sends one short request. Returns its seconds, or its error, as text. `seconds` is the timeout."""
    body = {"model": "demo", "prompt": "Hello", "max_tokens": 4, "temperature": 0}
    began = time.monotonic()
    try:
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=seconds, **PLAIN_HTTP).raise_for_status()
    except httpx.HTTPError as error:
        return f"{type(error).__name__} after {time.monotonic() - began:.1f} s"
    return f"{time.monotonic() - began:.2f} s"


@contextlib.contextmanager
def worker_socket(server: Server) -> "Iterator[zmq.Socket[bytes]]":
    with zmq_socket(zmq.DEALER) as peer:
        peer.connect(f"ipc://{server.runtime_dir}/worker.sock")
        yield peer
        time.sleep(SETTLE_SECONDS)


def idle_start_locks(server: Server) -> str:
    with grpc.insecure_channel(f"unix:{server.runtime_dir}/engine.sock") as channel:
        call = EngineServiceStub(channel).HoldStartLock(make_hello("tokenizer"))
        next(call)
        duration = request_time(server)
        call.cancel()
    return f"a request of another caller takes {duration}"


def malformed_frames(server: Server) -> str:
    before = num_lines(server)
    with worker_socket(server) as peer:
        for _ in range(NUM_FRAMES):
            peer.send(MALFORMED)
    return f"{num_lines(server) - before} lines in the log"


def num_lines(server: Server) -> int:
    """Returns the number of log lines, without the lines of single requests."""
    return sum("request finished" not in line for line in server.lines)


def slow_clients(server: Server) -> str:
    """Opens clients of the engine's metrics port that never finish a request. Returns how /health answers meanwhile."""
    address = server.log.partition("[engine] metrics on http://")[2].partition("/metrics")[0]
    with contextlib.ExitStack() as held:
        for _ in range(NUM_CLIENTS):
            client = held.enter_context(socket.create_connection(split_address(address)))
            client.sendall(b"G")
        try:
            return f"/health answers {httpx.get(f'http://{address}/health', timeout=5, **PLAIN_HTTP).status_code}"
        except httpx.HTTPError as error:
            return f"/health: {type(error).__name__}"


def large_frame(server: Server) -> str:
    before = peak_mib(server)
    with worker_socket(server) as peer:
        peer.send(bytes(LARGE_FRAME_BYTES), copy=False)
    return f"the engine's peak memory grows by {peak_mib(server) - before} MiB"


def deadly_frames(server: Server) -> str:
    before = num_engine_ends(server)
    for _ in range(NUM_DEATHS):
        with worker_socket(server) as peer:
            peer.send(NOT_UTF8)
        request_time(server)
    restarts = num_engine_ends(server) - before
    return f"{restarts} restarts of the engine; a request takes {request_time(server)}"


def num_engine_ends(server: Server) -> int:
    """Returns how many times the launcher reported that the engine exited or was killed."""
    return server.log.count("the engine exited") + server.log.count("the engine was killed")


def peak_mib(server: Server) -> int:
    """Returns the peak memory, in MiB, of the engine's process that the server started with.

    Raises AssertionError if that process has ended, even if a new engine runs.
    """
    for pid in server.pids:
        with contextlib.suppress(FileNotFoundError):
            if b"\0engine\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024
    raise AssertionError("the engine has ended")


ATTACKS: dict[str, Callable[[Server], str]] = {
    "an idle HoldStartLock call": idle_start_locks,
    f"{NUM_FRAMES} malformed frames": malformed_frames,
    f"{NUM_CLIENTS} clients that send one byte": slow_clients,
    f"a frame of {LARGE_FRAME_BYTES // 1_000_000} MB": large_frame,
    f"{NUM_DEATHS} frames of {len(NOT_UTF8)} bytes that are not UTF-8": deadly_frames,
}


def main(tree: str) -> None:
    with Server(cwd=tree) as server:
        print(f"without an attack: a request takes {request_time(server)}", flush=True)
        for name, attack in ATTACKS.items():
            print(f"{name}: {attack(server)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
