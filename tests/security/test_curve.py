"""ZeroMQ over TCP: only a worker with the secret can connect, and a worker connects only to an engine with it."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from engine_core.worker_messages import PROTOCOL, BatchLimits, WorkerHello, encode
from services.engine.worker_link import WorkerLink
from services.security import curve
from services.worker.engine_link import EngineGone, EngineLink
from tests.e2e.harness import wait_for
from tests.security.peers import OURS, THEIRS, free_address, zmq_socket

SILENCE_MS = 1500


@pytest.fixture
def engine() -> Iterator[tuple[WorkerLink, str]]:
    address = f"tcp://{free_address()}"
    link = WorkerLink(address, BatchLimits(PROTOCOL, 8, 64), OURS)
    yield link, address
    link.close()


def greeted(link: WorkerLink, worker: EngineLink) -> bool:
    """Returns whether the engine answers the worker's hello."""
    worker.hello()
    deadline = time.monotonic() + SILENCE_MS / 1000
    while time.monotonic() < deadline:
        link.poll_registration()
        if worker._socket.poll(50):
            return isinstance(worker.limits(), BatchLimits)
    return False


def test_curve_accepts_a_worker_with_the_secret(engine: tuple[WorkerLink, str]) -> None:
    worker = EngineLink(engine[1], OURS)
    assert greeted(engine[0], worker)
    worker.close()


def null_mechanism(socket: "zmq.Socket[bytes]") -> None:
    """A client without CURVE."""


def other_secret_everywhere(socket: "zmq.Socket[bytes]") -> None:
    curve.configure_client(socket, THEIRS)


def right_server_key_wrong_client_key(socket: "zmq.Socket[bytes]") -> None:
    curve.configure_client(socket, OURS)
    public, secret = zmq.curve_keypair()
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)


@pytest.mark.parametrize("configure", [null_mechanism, other_secret_everywhere, right_server_key_wrong_client_key])
def test_curve_refuses_every_other_key(
    engine: tuple[WorkerLink, str], configure: "Callable[[zmq.Socket[bytes]], None]", caplog: pytest.LogCaptureFixture
) -> None:
    link, address = engine
    with zmq_socket(zmq.DEALER) as peer, caplog.at_level(logging.WARNING):
        configure(peer)
        peer.connect(address)
        with contextlib.suppress(zmq.Again):  # a refusal that comes first leaves no connection to send on
            peer.send(encode(WorkerHello(PROTOCOL, 1, 0)), zmq.NOBLOCK)
        deadline = time.monotonic() + SILENCE_MS / 1000
        while time.monotonic() < deadline:
            assert link.poll_registration() is None
            assert not peer.poll(10), "the engine answered it"
        assert link._peer is None, "the engine received its hello"
    if configure is right_server_key_wrong_client_key:
        refusals = [record.message for record in caplog.records if "another key" in record.message]
        assert 1 <= len(refusals) <= 1 + SILENCE_MS // 1000, "at most one line a second, however often it retries"
    worker = EngineLink(address, OURS)
    assert greeted(link, worker)
    worker.close()


def test_no_client_is_accepted_without_the_handler(engine: tuple[WorkerLink, str]) -> None:
    """By default libzmq accepts every client that knows the server's public key."""
    link, address = engine
    assert link._authenticator is not None
    link._authenticator.close()
    worker = EngineLink(address, OURS)
    assert not greeted(link, worker)
    worker.close()


def test_a_worker_refuses_an_engine_with_another_secret() -> None:
    address = f"tcp://{free_address()}"
    other = WorkerLink(address, BatchLimits(PROTOCOL, 8, 64), THEIRS)
    worker = EngineLink(address, OURS)
    assert not greeted(other, worker)
    worker.close()
    other.close()


def test_a_large_frame_ends_the_connection(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read to its end, so that it takes no memory."""
    monkeypatch.setattr("services.engine.worker_link.MAX_RESULT_BYTES", 1000)
    link = WorkerLink(f"ipc://{socket_dir}/worker.sock", BatchLimits(PROTOCOL, 8, 64))
    worker = EngineLink(f"ipc://{socket_dir}/worker.sock")
    assert greeted(link, worker)
    worker._socket.send(b"x" * 1001)

    def gone() -> bool:
        link.poll_registration()
        try:
            return worker.poll_plan() is not None
        except EngineGone:
            return True

    try:
        wait_for(gone, "the connection ends")
    finally:
        worker.close()
        link.close()
