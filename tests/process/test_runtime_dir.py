"""The directory of the sockets: private, with a path short enough for a socket, removed at the end."""

import contextlib
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from services.errors import Fatal
from services.machine import files
from services.process.runtime_dir import LONGEST_SOCKET, UNFIT, runtime_dir
from tests.small_disk import small_disk


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


def test_without_a_disk_that_can_be_written_the_directory_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", "ro") as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        monkeypatch.setattr(files, "SHARED_MEMORY", tmp_path)
        with runtime_dir(None) as folder:
            assert folder.parent == tmp_path


def test_a_directory_on_a_read_only_disk_is_refused_in_one_line(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", "ro") as disk,
        pytest.raises(Fatal, match=f"^--runtime-dir: {disk}/sockets cannot be used: Read-only file system$"),
        runtime_dir(f"{disk}/sockets"),
    ):
        pass


def test_only_the_sockets_of_the_roles_are_removed(tmp_path: Path) -> None:
    """The directory may be the user's: Docker has its socket in $XDG_RUNTIME_DIR."""
    names = ("docker.sock", "worker.sock", "engine.sock", "tokenizer-0.sock")
    with contextlib.ExitStack() as sockets, runtime_dir(str(tmp_path)) as folder:
        for name in names:
            sockets.enter_context(socket.socket(socket.AF_UNIX)).bind(str(folder / name))
        (folder / "tokenizer-1.sock").touch()
    assert {path.name for path in tmp_path.iterdir()} == {"docker.sock", "tokenizer-1.sock", "lock"}


def test_without_a_usable_temporary_directory_the_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    monkeypatch.setattr(files, "SHARED_MEMORY", Path("/proc/none"))
    with (
        pytest.raises(Fatal, match="--runtime-dir is not set, and no temporary directory can be made: No such file"),
        runtime_dir(None),
    ):
        pass
