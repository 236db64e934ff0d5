"""Sources of the secret, keys derived from it, and secrets that are refused."""

import os
import tempfile
from pathlib import Path

import pytest

from services.errors import Fatal
from services.options.command_line import parse
from services.options.common import SecretOptions
from services.options.setting import UsageError
from services.security.secret import ClusterSecret, cache_root_key, cluster_secret, read_secret
from tests.security.peers import OURS, THEIRS

VALUE = "0123456789abcdef" * 2


def test_keys_depend_on_the_secret_and_the_purpose() -> None:
    assert OURS.derive("a", 32) == ClusterSecret(OURS.value).derive("a", 32)
    assert len({OURS.derive("a", 32), OURS.derive("b", 32), THEIRS.derive("a", 32)}) == 3
    # RFC 5869 with SHA-256, computed by hmac alone: a new version must not derive other keys from the same secret.
    assert OURS.derive("a", 16).hex() == "69d98e2d52274c5c8dc40b69f8d6457c"


def test_the_secret_is_not_printed() -> None:
    assert VALUE not in repr(ClusterSecret(VALUE.encode())) + str(ClusterSecret(VALUE.encode()))


def test_white_space_at_the_ends_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f" {VALUE}\n")
    for options in (SecretOptions(cluster_secret_file=str(file)), SecretOptions(cluster_secret=f"{VALUE}\n")):
        assert cluster_secret(options) == ClusterSecret(VALUE.encode())
    assert cluster_secret(SecretOptions()) is None


def test_a_secret_is_read_from_a_descriptor() -> None:
    """More than once, because a child process may be restarted."""
    with tempfile.TemporaryFile() as file:
        file.write(VALUE.encode())
        file.flush()
        for _ in range(2):
            assert read_secret(f"/dev/fd/{file.fileno()}") == ClusterSecret(VALUE.encode())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "32 to 4096 bytes, and this one has 0"),
        (b"short", "32 to 4096 bytes, and this one has 5"),
        (b" " * 40 + b"\n", "32 to 4096 bytes, and this one has 0"),
        (b"x" * 5000, "32 to 4096 bytes"),
    ],
)
def test_a_secret_of_wrong_size_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(Fatal, match=said):
        read_secret(str(file))


def test_engines_of_a_deployment_have_one_root_key() -> None:
    ours = cache_root_key(OURS, None)
    assert ours == cache_root_key(ClusterSecret(OURS.value), VALUE), "the deployment's secret comes first"
    assert len({ours, cache_root_key(THEIRS, None), OURS.value}) == 3
    # As test_keys_depend_on_the_secret_and_the_purpose: the key of a newer version must not differ.
    assert ours.hex() == "83952f8c3d7ccc80a98d6d11cf58e0e131a0eb2fa55db8ede2a8d24898ae1d12"


def test_without_a_secret_the_root_key_is_the_one_passed_or_a_random_one() -> None:
    assert cache_root_key(None, VALUE) == VALUE.encode()
    drawn = [cache_root_key(None, None) for _ in range(2)]
    assert [len(key) for key in drawn] == [32, 32] and drawn[0] != drawn[1]
    with pytest.raises(Fatal, match="^TANDEM_CACHE_ROOT_KEY: a secret must have 32 to 4096 bytes, and this one has 5$"):
        cache_root_key(None, "short")


def test_the_root_key_comes_from_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CACHE_ROOT_KEY", VALUE)
    assert parse("engine", []).cache_root_key == VALUE
    with pytest.raises(UsageError, match="unrecognized arguments: --cache-root-key"):
        parse("engine", [f"--cache-root-key={VALUE}"])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match=rf"--cluster-secret-file: {tmp_path}/none cannot be read: No such file"):
        cluster_secret(SecretOptions(cluster_secret_file=f"{tmp_path}/none"))
    with pytest.raises(Fatal, match="TANDEM_CLUSTER_SECRET: .* this one has 3"):
        cluster_secret(SecretOptions(cluster_secret="abc"))


def test_a_command_line_or_configuration_file_must_not_hold_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_CLUSTER_SECRET_FILE", raising=False)
    monkeypatch.setenv("TANDEM_CLUSTER_SECRET", VALUE)
    assert parse("engine", []).cluster_secret == VALUE
    with pytest.raises(UsageError, match="both given"):
        parse("engine", ["--cluster-secret-file=x"])
    with pytest.raises(UsageError, match="unrecognized arguments: --cluster-secret"):
        parse("engine", [f"--cluster-secret={VALUE}"])
    file = tmp_path / "options.yaml"
    file.write_text(f"cluster-secret: {VALUE}\n")
    with pytest.raises(UsageError, match="unknown option 'cluster_secret'"):
        parse("engine", [f"--config={file}"])
    monkeypatch.delenv("TANDEM_CLUSTER_SECRET")
    monkeypatch.setenv("TANDEM_CLUSTER_SECRET_FILE", os.devnull)
    assert parse("worker", []).cluster_secret_file == os.devnull
