"""The TLS files of the HTTP server: what is refused, and by which words; when they are loaded anew."""

import logging
from pathlib import Path

import pytest

from services.errors import Fatal
from services.security.https import Https, HttpsFiles, https_of
from tests.security.http_certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_no_certificate_no_tls() -> None:
    assert https_of({"ssl_certfile": None, "ssl_cert_reqs": 0}) is None


def test_key_and_certificate_may_share_a_file(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("server")
    both = tmp_path / "both.pem"
    both.write_text(Path(pair.key).read_text() + Path(pair.certificate).read_text())
    assert https_of({"ssl_certfile": str(both)}) is not None


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue("server"), authority.issue("other")
    locked = authority.issue("locked", password=b"secret")
    (tmp_path / "empty").write_text("")
    for files, message in [
        (HttpsFiles(f"{tmp_path}/none.pem"), "none.pem does not exist, or this process may not read it"),
        (HttpsFiles(str(tmp_path / "empty")), "--ssl-certfile .*/empty: .* they must be PEM"),
        (HttpsFiles(pair.certificate, other.key), "--ssl-keyfile .*/other.key: .*KEY_VALUES_MISMATCH"),
        (HttpsFiles(locked.certificate, locked.key), "locked.key: the key is encrypted; decrypt it"),
        (HttpsFiles(pair.certificate, pair.key, ca_certs=str(tmp_path / "empty")), "--ssl-ca-certs .*/empty"),
        (
            HttpsFiles(pair.certificate, pair.key, ciphers="NONE-OF-THIS"),
            "--ssl-ciphers NONE-OF-THIS: OpenSSL knows no",
        ),
    ]:
        with pytest.raises(Fatal, match=message):
            files.context()


def test_changed_files_are_loaded_anew(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pair = authority.issue("server")
    https = Https(HttpsFiles(pair.certificate, pair.key))
    first = https.context
    https.refresh()
    assert https.context is first and not caplog.records, "nothing has changed"
    authority.issue("server")
    https.refresh()
    second = https.context
    assert second is not first and "new connections use the changed TLS files" in caplog.text
    Path(pair.certificate).write_text("half a file")
    https.refresh()
    Path(pair.key).unlink()
    https.refresh()
    https.refresh()
    assert https.context is second, "the last ones that could be used"
    assert caplog.text.count("the changed TLS files cannot be used, the old ones stay in use") == 2
    authority.issue("server")
    https.refresh()
    assert https.context is not second
