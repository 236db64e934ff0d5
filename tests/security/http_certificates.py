"""Certificates for tests of HTTPS: an authority, a server's certificate for 127.0.0.1, and a client's."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BEGINS, ENDS = datetime.datetime(2026, 1, 1), datetime.datetime(2076, 1, 1)


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass(frozen=True)
class Pair:
    """Paths of a certificate and its key, as PEM."""

    certificate: str
    key: str


class Authority:
    """Signs certificates and writes them to `folder`. `path`: its own certificate."""

    def __init__(self, folder: Path, subject: str = "authority") -> None:
        self._folder = folder
        self._name = name(subject)
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._builder(self._name, self._key, ca=True).sign(self._key, hashes.SHA256())
        self.path = self._write(f"{subject}.pem", certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, subject: str, *, password: bytes | None = None) -> Pair:
        """Writes a new certificate and key, over those of the same `subject`."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        certificate = (
            self._builder(name(subject), key, ca=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        return Pair(
            self._write(f"{subject}.pem", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{subject}.key", pem),
        )

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(BEGINS)
            .not_valid_after(ENDS)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def _write(self, file: str, content: bytes) -> str:
        path = self._folder / file
        path.write_bytes(content)
        return str(path)
