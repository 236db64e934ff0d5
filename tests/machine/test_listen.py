"""Listening Unix sockets: who may connect, stale files, and what is left at the end."""

import socket
import stat
from pathlib import Path

import pytest

from services.errors import Fatal
from services.machine import MAX_SOCKET_PATH
from services.machine.listen import listen_unix
from tests.unix_socket import connects


@pytest.fixture
def path(socket_dir: Path) -> Path:
    return socket_dir / "http.sock"


def test_only_this_user_may_connect_and_the_file_is_removed(path: Path) -> None:
    with listen_unix(str(path)) as front:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert connects(path) and not front.getblocking()
    assert not path.exists()


def test_the_file_of_a_dead_process_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists() and not connects(path)
    with listen_unix(str(path)):
        assert connects(path)


def test_a_path_in_use_is_refused_and_stays(path: Path) -> None:
    with listen_unix(str(path)):
        with pytest.raises(Fatal, match=f"cannot listen on {path}: another process listens on it"):
            listen_unix(str(path)).__enter__()
        assert connects(path)


def test_another_file_is_refused_and_stays(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(Fatal, match="the file exists and is no socket"), listen_unix(str(path)):
        pass
    assert path.read_text() == "mine"


def test_the_socket_of_a_successor_stays(path: Path) -> None:
    with listen_unix(str(path)):
        path.unlink()
        successor = listen_unix(str(path))
        successor.__enter__()
    assert connects(path)
    successor.__exit__(None, None, None)
    assert not path.exists()


@pytest.mark.parametrize("name", ["none/http.sock", "x" * (MAX_SOCKET_PATH + 1)])
def test_paths_that_cannot_be_bound_are_named(socket_dir: Path, name: str) -> None:
    with pytest.raises(Fatal, match=f"cannot listen on {socket_dir / name}: "), listen_unix(str(socket_dir / name)):
        pass


def test_the_mode_of_other_files_is_unchanged(path: Path, socket_dir: Path) -> None:
    with listen_unix(str(path)):
        (socket_dir / "other").touch()
    assert stat.S_IMODE((socket_dir / "other").stat().st_mode) & 0o400
