"""The files of `tandem internal-credentials`, read by a program that calls the processes over TCP.

Needs no cryptography: gRPC reads the certificates. services/security/credentials.py writes the files.
"""

from pathlib import Path

import grpc

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "certificate.pem", "key.pem"
NAME = "tandem.internal"  # the subject of every certificate; the hello names the process
TLS_OPTIONS = [("grpc.ssl_target_name_override", NAME)]  # of every channel with TLS


def read_credentials(folder: Path) -> grpc.ChannelCredentials:
    """Returns a client's credentials; the channel must have TLS_OPTIONS. Raises OSError if a file cannot be read."""
    authority, key, certificate = ((folder / name).read_bytes() for name in (AUTHORITY, KEY, CERTIFICATE))
    return grpc.ssl_channel_credentials(authority, key, certificate)
