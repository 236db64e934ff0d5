"""Over TCP only a peer with the secret can connect: certificates and public keys are not enough."""

import logging
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
import zmq
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from engine_core.worker_messages import PROTOCOL, BatchLimits, WorkerHello, encode
from services.engine.worker_link import WorkerLink
from services.rpc.transport import open_channel
from services.security import curve, tls
from services.worker.engine_link import EngineGone, EngineLink
from tests.e2e.harness import wait_for
from tests.security.peers import OURS, THEIRS, free_address, num_steps, stats_server, zmq_socket

SILENCE_MS = 1500


async def test_grpc_accepts_a_caller_with_the_secret() -> None:
    async with stats_server() as address, open_channel(address, OURS) as channel:
        assert await num_steps(channel) == 7


async def insecure(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address)


async def other_secret(address: str) -> grpc.aio.Channel:
    return open_channel(address, THEIRS)


async def without_certificate(address: str) -> grpc.aio.Channel:
    """Knows the authority's certificate, which every handshake shows."""
    credentials = grpc.ssl_channel_credentials(tls.certificates(OURS).authority)
    return grpc.aio.secure_channel(address, credentials, tls.CHANNEL_OPTIONS)


async def certificate_of_another_authority(address: str) -> grpc.aio.Channel:
    theirs = tls.certificates(THEIRS)
    credentials = grpc.ssl_channel_credentials(tls.certificates(OURS).authority, theirs.key, theirs.certificate)
    return grpc.aio.secure_channel(address, credentials, tls.CHANNEL_OPTIONS)


@pytest.mark.parametrize("knock", [insecure, other_secret, without_certificate, certificate_of_another_authority])
async def test_grpc_refuses_every_other_certificate(knock: Callable[[str], object]) -> None:
    async with stats_server() as address:
        async with await knock(address) as channel:  # type: ignore[misc]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await num_steps(channel, 3.0)
        assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        async with open_channel(address, OURS) as channel:
            assert await num_steps(channel) == 7, "and goes on with the others"


async def test_a_caller_refuses_a_server_without_the_secret() -> None:
    async with stats_server(THEIRS) as address, open_channel(address, OURS) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await num_steps(channel, 3.0)


def test_certificates_are_what_verifiers_want() -> None:
    """By the rules of RFC 5280, at the first and at the last moment of their validity."""
    own = tls.certificates(OURS)
    authority = x509.load_pem_x509_certificate(own.authority)
    leaf = x509.load_pem_x509_certificate(own.certificate)
    for moment in (tls.BEGINS, tls.ENDS - timedelta(seconds=1)):
        builder = PolicyBuilder().store(Store([authority])).time(moment)
        chain = builder.build_server_verifier(x509.DNSName(tls.NAME)).verify(leaf, [])
        assert len(chain) == 2
    assert leaf.public_key() != authority.public_key()


@pytest.fixture
def engine() -> Iterator[tuple[WorkerLink, str]]:
    address = f"tcp://{free_address()}"
    link = WorkerLink(address, BatchLimits(PROTOCOL, 8, 64), OURS)
    yield link, address
    link.close()


def greeted(link: WorkerLink, worker: EngineLink) -> bool:
    """Whether the engine answers a worker's hello."""
    worker.hello()
    deadline = time.monotonic() + SILENCE_MS / 1000
    while time.monotonic() < deadline:
        link.poll_registration()
        if worker._socket.poll(50):
            return isinstance(worker.limits(), BatchLimits)
    return False


def test_curve_lets_in_who_has_the_secret(engine: tuple[WorkerLink, str]) -> None:
    worker = EngineLink(engine[1], OURS)
    assert greeted(engine[0], worker)
    worker.close()


def null_mechanism(socket: "zmq.Socket[bytes]") -> None:
    """As if there were no keys."""


def other_secret_everywhere(socket: "zmq.Socket[bytes]") -> None:
    curve.configure_client(socket, THEIRS)


def right_server_key_wrong_client_key(socket: "zmq.Socket[bytes]") -> None:
    curve.configure_client(socket, OURS)
    public, secret = zmq.curve_keypair()
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)


@pytest.mark.parametrize("disguise", [null_mechanism, other_secret_everywhere, right_server_key_wrong_client_key])
def test_curve_refuses_every_other_key(
    engine: tuple[WorkerLink, str], disguise: "Callable[[zmq.Socket[bytes]], None]", caplog: pytest.LogCaptureFixture
) -> None:
    link, address = engine
    with zmq_socket(zmq.DEALER) as peer, caplog.at_level(logging.WARNING):
        disguise(peer)
        peer.connect(address)
        peer.send(encode(WorkerHello(PROTOCOL, 1, 0)))
        deadline = time.monotonic() + SILENCE_MS / 1000
        while time.monotonic() < deadline:
            assert link.poll_registration() is None
            assert not peer.poll(10), "it has an answer"
        assert link._peer is None, "its hello came through"
    if disguise is right_server_key_wrong_client_key:
        said = [record.message for record in caplog.records if "another key" in record.message]
        assert 1 <= len(said) <= 1 + SILENCE_MS // 1000, "it comes again and again, and is one line a second"
    worker = EngineLink(address, OURS)
    assert greeted(link, worker)
    worker.close()


def test_no_client_is_admitted_without_the_handler(engine: tuple[WorkerLink, str]) -> None:
    """libzmq would admit every client that knows the server's key."""
    link, address = engine
    assert link._authenticator is not None
    link._authenticator.close()
    worker = EngineLink(address, OURS)
    assert not greeted(link, worker)
    worker.close()


def test_a_worker_speaks_to_no_other_engine() -> None:
    address = f"tcp://{free_address()}"
    other = WorkerLink(address, BatchLimits(PROTOCOL, 8, 64), THEIRS)
    worker = EngineLink(address, OURS)
    assert not greeted(other, worker)
    worker.close()
    other.close()


def test_a_large_frame_costs_its_sender_the_connection(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read to its end, so that no memory goes to it."""
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
