"""Mutual TLS for gRPC. Every process derives the key of the certificate authority from the secret.

Each process makes its own key and certificate in memory, so none is copied. The curve is P-256, because
gRPC's TLS refuses Ed25519. The dates of validity are fixed, because clocks differ and processes run for months.
RFC 5280 · https://grpc.github.io/grpc/python/grpc.html#create-server-credentials
"""

import datetime
from dataclasses import dataclass
from functools import cache

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.security.credential_files import NAME
from services.security.secret import ClusterSecret

BEGINS = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ENDS = datetime.datetime(2036, 1, 1, tzinfo=datetime.UTC)
_CURVE = ec.SECP256R1()
_AUTHORITY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tandem cluster")])


@dataclass(frozen=True)
class Certificates:
    """PEM: the authority's certificate, and the certificate and key of one process."""

    authority: bytes
    certificate: bytes
    key: bytes


@cache
def certificates(secret: ClusterSecret) -> Certificates:
    """Returns this process's certificates, signed by the authority derived from `secret`; made at the first call."""
    authority_key = _authority_key(secret)
    authority = _authority(authority_key)
    own_key = ec.generate_private_key(_CURVE)
    own = (
        _certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)]), own_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    return Certificates(
        authority.public_bytes(serialization.Encoding.PEM),
        own.public_bytes(serialization.Encoding.PEM),
        own_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def server_credentials(secret: ClusterSecret) -> grpc.ServerCredentials:
    """Returns a server's credentials: the handshake refuses clients without a certificate of the authority derived from
    `secret`."""
    own = certificates(secret)
    return grpc.ssl_server_credentials([(own.key, own.certificate)], own.authority, require_client_auth=True)


def channel_credentials(secret: ClusterSecret) -> grpc.ChannelCredentials:
    """Returns a client's credentials: the handshake refuses servers without a certificate of the authority derived from
    `secret`. The channel must have TLS_OPTIONS."""
    own = certificates(secret)
    return grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)


def _authority_key(secret: ClusterSecret) -> ec.EllipticCurvePrivateKey:
    """Returns the authority's key, derived from `secret`. Reducing 64 bits more than the order has keeps the bias
    negligible (FIPS 186-5, appendix A.2.1)."""
    number = int.from_bytes(secret.derive("grpc certificate authority", 40), "big")
    return ec.derive_private_key(number % (_CURVE.group_order - 1) + 1, _CURVE)


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """Returns the authority's certificate. Each process signs one: signatures differ, but name and key are equal, so
    every process verifies the certificates of all others."""
    return (
        _certificate(_AUTHORITY, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage_of_authority(), critical=True)
        .sign(key, hashes.SHA256())
    )


def _certificate(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGINS)
        .not_valid_after(ENDS)
    )


def _usage_of_authority() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
