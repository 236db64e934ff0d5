"""Connections of a process are cut from outside, those of one socket only."""

import os
import socket
from pathlib import Path

import pytest

from tests.chaos.connections import cut


def test_connections_of_one_socket_are_cut(socket_dir: Path) -> None:
    paths = [str(socket_dir / name) for name in ("one.sock", "other.sock")]
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        for path, listening in zip(paths, (one, other), strict=True):
            listening.bind(path)
            listening.listen()
        with socket.socket(socket.AF_UNIX) as client, socket.socket(socket.AF_UNIX) as spared:
            client.connect(paths[0])
            spared.connect(paths[1])
            (served, _), (served_too, _) = one.accept(), other.accept()
            with served, served_too:
                try:
                    count = cut(os.getpid(), paths[:1])
                except PermissionError:
                    pytest.skip("this process may not trace itself")
                assert count == 2, "both ends are in this process"
                assert client.recv(1) == b""
                spared.send(b"x")
                assert served_too.recv(1) == b"x"
