"""The processes of a transport benchmark: their addresses, the secret, the letters, a process that fails to start."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

import demo
from loadtest.transport.processes import addresses, letter_ids, wait_until_ready
from loadtest.transport.stream_client import ALPHABET
from services.process.child_processes import ChildFailed, ChildProcesses
from services.process.readiness import Readiness


def test_unix_sockets_lie_in_the_folder_and_need_no_secret(tmp_path: Path) -> None:
    with addresses(tmp_path, tcp=False) as at:
        places = {at.engine.removeprefix("unix:"), at.worker.removeprefix("ipc://"), at.tokenizer.removeprefix("unix:")}
        assert {Path(place).parent for place in places} == {tmp_path} and len(places) == 3
        assert at.arguments == [] and at.fds == []


def test_tcp_addresses_differ_and_share_a_secret_without_a_name(tmp_path: Path) -> None:
    with addresses(tmp_path, tcp=True) as at:
        assert at.worker.startswith("tcp://")
        assert len({at.engine, at.worker.removeprefix("tcp://"), at.tokenizer}) == 3
        (argument,), (fd,) = at.arguments, at.fds
        assert argument == f"--cluster-secret-file=/dev/fd/{fd}"
        assert at.secret is not None
        at.secret.seek(0)
        assert len(bytes.fromhex(at.secret.read().decode())) == 32
        assert list(tmp_path.iterdir()) == []


def test_each_letter_is_one_token() -> None:
    tokenizer = Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))
    assert tokenizer.decode(letter_ids()) == ALPHABET


def test_a_process_that_ends_stops_the_wait() -> None:
    with Readiness() as readiness, ChildProcesses() as children:
        children.start_module("worker", ["loadtest.transport.no_such_module"], {}, [])
        with pytest.raises(ChildFailed):
            wait_until_ready(children, readiness)
