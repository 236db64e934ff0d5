"""gRPC over TCP: only a peer with the secret can connect, and both ends check the other's certificate."""

from collections.abc import Callable
from datetime import timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from services.rpc.transport import open_channel
from services.security import tls
from services.security.credential_files import NAME, TLS_OPTIONS
from tests.security.peers import OURS, THEIRS, num_steps, stats_server


async def test_grpc_accepts_a_caller_with_the_secret() -> None:
    async with stats_server() as address, open_channel(address, OURS) as channel:
        assert await num_steps(channel) == 7


async def insecure(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address)


async def other_secret(address: str) -> grpc.aio.Channel:
    return open_channel(address, THEIRS)


async def without_certificate(address: str) -> grpc.aio.Channel:
    """Has the authority's certificate, which every handshake shows, but none of its own."""
    credentials = grpc.ssl_channel_credentials(tls.certificates(OURS).authority)
    return grpc.aio.secure_channel(address, credentials, TLS_OPTIONS)


async def certificate_of_another_authority(address: str) -> grpc.aio.Channel:
    theirs = tls.certificates(THEIRS)
    credentials = grpc.ssl_channel_credentials(tls.certificates(OURS).authority, theirs.key, theirs.certificate)
    return grpc.aio.secure_channel(address, credentials, TLS_OPTIONS)


@pytest.mark.parametrize("connect", [insecure, other_secret, without_certificate, certificate_of_another_authority])
async def test_grpc_refuses_every_other_certificate(connect: Callable[[str], object]) -> None:
    async with stats_server() as address:
        async with await connect(address) as channel:  # type: ignore[misc]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await num_steps(channel, 3.0)
        assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        async with open_channel(address, OURS) as channel:
            assert await num_steps(channel) == 7, "the server still accepts other callers"


async def test_a_caller_refuses_a_server_without_the_secret() -> None:
    async with stats_server(THEIRS) as address, open_channel(address, OURS) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await num_steps(channel, 3.0)


def test_a_certificate_passes_the_rules_of_rfc_5280() -> None:
    """At the first and at the last second of its validity."""
    own = tls.certificates(OURS)
    authority = x509.load_pem_x509_certificate(own.authority)
    leaf = x509.load_pem_x509_certificate(own.certificate)
    for moment in (tls.BEGINS, tls.ENDS - timedelta(seconds=1)):
        builder = PolicyBuilder().store(Store([authority])).time(moment)
        chain = builder.build_server_verifier(x509.DNSName(NAME)).verify(leaf, [])
        assert len(chain) == 2
    assert leaf.public_key() != authority.public_key()


def made_by_another_process() -> tls.Certificates:
    """Makes certificates without the cache of this process."""
    return tls.certificates.__wrapped__(OURS)


def verify(leaf: x509.Certificate, authority: x509.Certificate) -> None:
    """Raises VerificationError."""
    store = PolicyBuilder().store(Store([authority])).time(tls.BEGINS)
    store.build_server_verifier(x509.DNSName(NAME)).verify(leaf, [])


def test_processes_with_one_secret_verify_each_other() -> None:
    """They derive the same authority, and make keys of their own."""
    first, second = made_by_another_process(), made_by_another_process()
    assert first.key != second.key and first.certificate != second.certificate
    authorities = [x509.load_pem_x509_certificate(own.authority) for own in (first, second)]
    assert authorities[0].public_key() == authorities[1].public_key()
    for own, authority in ((first, authorities[1]), (second, authorities[0])):
        verify(x509.load_pem_x509_certificate(own.certificate), authority)


def test_another_secret_makes_another_authority() -> None:
    ours, theirs = (tls.certificates(secret) for secret in (OURS, THEIRS))
    leaf = x509.load_pem_x509_certificate(theirs.certificate)
    with pytest.raises(VerificationError):
        verify(leaf, x509.load_pem_x509_certificate(ours.authority))
    verify(leaf, x509.load_pem_x509_certificate(theirs.authority))


def test_a_process_certificate_signs_no_other() -> None:
    leaf = x509.load_pem_x509_certificate(tls.certificates(OURS).certificate)
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
