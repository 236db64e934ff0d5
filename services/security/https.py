"""TLS of the HTTP server: certificate, key, and which clients' certificates it asks for. Meanings are those of vLLM's
options --ssl-*. The files may be replaced while the server runs.

https://docs.python.org/3/library/ssl.html#ssl.SSLContext
"""

import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.errors import Fatal

log = logging.getLogger(__name__)


class _Encrypted(Exception):
    """The key needs a password."""


@dataclass(frozen=True)
class HttpsFiles:
    """`keyfile` None: the key is in `certfile`. `cert_reqs`: a value of ssl.VerifyMode. `ciphers`: of TLS 1.2."""

    certfile: str
    keyfile: str | None = None
    ca_certs: str | None = None
    cert_reqs: int = ssl.CERT_NONE
    ciphers: str | None = None

    @property
    def paths(self) -> list[str]:
        return [path for path in (self.certfile, self.keyfile, self.ca_certs) if path is not None]

    def context(self) -> ssl.SSLContext:
        """Returns a server's context of TLS 1.2 or later. Raises Fatal that names the option and the file at fault."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        self._load_certificate(context)
        context.verify_mode = ssl.VerifyMode(self.cert_reqs)
        if self.ca_certs is not None:
            try:
                context.load_verify_locations(self.ca_certs)
            except OSError as error:  # SSLError as well
                raise Fatal(f"--ssl-ca-certs {self.ca_certs}: {_reason(error)}") from error
        if self.ciphers is not None:
            try:
                context.set_ciphers(self.ciphers)
            except ssl.SSLError as error:
                raise Fatal(f"--ssl-ciphers {self.ciphers}: OpenSSL knows no such cipher of TLS 1.2") from error
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        for path in self.paths:
            if not os.access(path, os.R_OK):
                raise Fatal(f"the TLS file {path} does not exist, or this process may not read it")
        files = f"--ssl-certfile {self.certfile}" + (f", --ssl-keyfile {self.keyfile}" if self.keyfile else "")
        try:
            context.load_cert_chain(self.certfile, self.keyfile, _no_password)
        except _Encrypted as error:
            raise Fatal(f"{files}: the key is encrypted; decrypt it, for example with `openssl pkey`") from error
        except OSError as error:
            raise Fatal(f"{files}: {_reason(error)}; they must be PEM, and the key that of the certificate") from error


def https_of(values: Mapping[str, Any]) -> "Https | None":
    """Returns the TLS that the options ask for, by their names; None without --ssl-certfile. Raises Fatal as Https."""
    names = {"certfile": "ssl_certfile", "keyfile": "ssl_keyfile", "ca_certs": "ssl_ca_certs"}
    names |= {"cert_reqs": "ssl_cert_reqs", "ciphers": "ssl_ciphers"}
    given = {field: values[name] for field, name in names.items() if values.get(name) is not None}
    return Https(HttpsFiles(**given)) if "certfile" in given else None


class Https:
    """`context`: for new connections. Raises Fatal as HttpsFiles.context."""

    def __init__(self, files: HttpsFiles) -> None:
        self._files = files
        self._versions = self._current_versions()
        self.context = files.context()

    def refresh(self) -> None:
        """Loads the files anew if one has changed. If that fails, it logs why, and the old ones stay in use."""
        versions = self._current_versions()
        if versions == self._versions:
            return
        self._versions = versions
        try:
            self.context = self._files.context()
        except Fatal as error:
            log.error("the changed TLS files cannot be used, the old ones stay in use: %s", error)
        else:
            log.info("new connections use the changed TLS files")

    def _current_versions(self) -> list[tuple[int, int, int] | None]:
        """Returns something that differs once a file has changed."""
        return [_version(path) for path in self._files.paths]


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _no_password() -> str:
    """Refuses to give a password: OpenSSL would ask for one at the terminal."""
    raise _Encrypted


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)
