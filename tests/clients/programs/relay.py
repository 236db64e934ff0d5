"""A relay of bytes before the server. It keeps the first different refusals, because command lines hide their bodies.

Imports only the standard library.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

KEPT = 2  # refusals
CHARACTERS = 500  # of each one


@contextlib.contextmanager
def relay(url: str) -> Iterator[tuple[str, list[str]]]:
    """Yields a URL that leads to the server at `url`, and a list that gets "STATUS BODY" of its first different
    refusals."""
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    target = (parts.hostname, parts.port)
    refusals: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=_accept, args=(listener, target, refusals), daemon=True)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", refusals
        finally:
            # Closing alone would not wake the thread in accept().
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _accept(listener: socket.socket, target: tuple[str, int], refusals: list[str]) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_connect, args=(client, target, refusals), daemon=True).start()


def _connect(client: socket.socket, target: tuple[str, int], refusals: list[str]) -> None:
    with client, socket.create_connection(target) as server:
        up = threading.Thread(target=_copy, args=(client, server, None), daemon=True)
        up.start()
        _copy(server, client, refusals)
        up.join()


def _copy(source: socket.socket, sink: socket.socket, refusals: list[str] | None) -> None:
    """Sends what `source` receives to `sink`, until one of them is closed. Keeps refusals in `refusals`, each before
    the client has all of it."""
    answer = b""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if refusals is not None and len(refusals) < KEPT:
                if data.startswith(b"HTTP/1.1 "):  # the server begins each answer in a packet of its own
                    answer = data if data[9:10] in b"45" else b""
                elif answer:
                    answer += data
                _keep(answer, refusals)
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _keep(answer: bytes, refusals: list[str]) -> None:
    """Adds an answer to `refusals` once it has a body, unless the same one is there."""
    head, _, body = answer.partition(b"\r\n\r\n")
    refusal = f"{head[9:12].decode()} {body.decode(errors='replace')[:CHARACTERS]}"
    if body and refusal not in refusals:
        refusals.append(refusal)
