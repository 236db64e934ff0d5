"""The directory of the sockets: private, with a path short enough for a socket, removed at the end."""

import socket
import stat
import tempfile
from pathlib import Path

import pytest

from services.errors import Fatal
from services.process.runtime_dir import LONGEST_SOCKET, UNFIT, runtime_dir


@pytest.mark.parametrize("name", ["d" * 10, "d" * 150, "a,b", "a#b", "a%20b", "a b=c", "\udcff"], ids=ascii)
def test_a_socket_fits_whatever_the_temporary_directory_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tmp_path / name
    parent.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    with runtime_dir(None) as folder, socket.socket(socket.AF_UNIX) as own:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        own.bind(str(folder / LONGEST_SOCKET))
        assert not UNFIT.search(str(folder))
    assert not folder.exists() and not list(parent.iterdir())


def test_without_a_usable_temporary_directory_the_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    with (
        pytest.raises(Fatal, match="--runtime-dir is not set, and no temporary directory can be made: No such file"),
        runtime_dir(None),
    ):
        pass
