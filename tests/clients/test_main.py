"""Which server each client asks. No environment is made, no server started."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import __main__ as program
from tests.clients.catalogue import Client, PipClient
from tests.clients.server import Server

FLOAT32 = ("--dtype", "float32")
PLAIN, OTHER = (PipClient(name, (f"{name}==1",), f"ask_{name}.py") for name in ("plain", "other"))
EXACT = PipClient("exact", ("exact==1",), "ask_exact.py", options=FLOAT32)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Returns a list that gets (client, URL of the server that its program asks); a server's URL has its options."""
    found: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def running(tandem: list[str], cwd: Path, *, gateway: bool, options: tuple[str, ...]) -> Iterator[Server]:
        yield Server("http:" + " ".join(options))

    def test(client: Client, arguments: tuple[str, ...], summary: program.Summary) -> None:
        found.append((client.name, arguments[0]))

    monkeypatch.setattr(program, "CLIENTS", (PLAIN, EXACT, OTHER))
    monkeypatch.setattr(program, "running", running)
    monkeypatch.setattr(program, "test", test)
    return found


def test_clients_with_options_have_a_server_of_their_own(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["clients"])
    assert program.main() == 0
    assert asked == [("plain", "http:"), ("other", "http:"), ("exact", "http:--dtype float32")]


def test_a_given_server_is_not_asked_by_clients_with_options(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["clients", "--url", "http://given"])
    assert program.main() == 0
    assert asked == [("plain", "http://given"), ("other", "http://given")]
    assert "skipped  it needs a server started here, with --dtype float32" in capsys.readouterr().out
