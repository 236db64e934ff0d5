"""A command that cannot start prints one error line, and leaves no process and no file behind."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from services.machine import MAX_SOCKET_PATH
from tests.addresses import at, open_server
from tests.checkpoints import make_qwen3
from tests.e2e.harness import Server, error_lines, run_tandem


def refusal(folder: Path, *args: str, status: int = 1) -> str:
    """Returns the only error line of a command that fails. Checks that it leaves no process and no file."""
    temporary = folder / "tmp"
    temporary.mkdir()
    ended = run_tandem(*args, env={"TMPDIR": str(temporary)}, seconds=30)
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == "" and "Traceback" not in ended.stderr, ended.stderr
    assert list(temporary.iterdir()) == []
    assert [line for line in _command_lines() if str(temporary) in line] == []
    said = error_lines(ended.stderr)
    assert len(said) == 1, ended.stderr
    return said[0]


def _command_lines() -> list[str]:
    """Returns the command line of every process that this user may read."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # of another user, or ended meanwhile
            found.append(file.read_text(errors="replace"))
    return found


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with open_server() as taken:
        port = taken.getsockname()[1]
        line = refusal(tmp_path, "serve", f"--port={port}")
    assert line == f"tandem serve: error: cannot listen on {at(port)}: Address already in use"


def test_a_runtime_dir_that_cannot_be_used_is_refused(socket_dir: Path, demo_server: Server) -> None:
    (socket_dir / "file").touch()
    for folder, said in (
        (demo_server.runtime_dir, "another server uses"),
        (socket_dir / "file", "cannot be used: File exists"),
        (socket_dir / ("x" * 100), f"a path of more than {MAX_SOCKET_PATH} bytes"),
        (socket_dir / "a,b", "cannot contain the character ','"),
    ):
        done = run_tandem("serve", "--port=0", f"--runtime-dir={folder}")
        (line,) = done.stderr.strip().splitlines()
        assert done.returncode == 1 and line.startswith("tandem serve: error: --runtime-dir: ") and said in line
    assert demo_server.stats().num_blocks > 0, "the first server keeps its sockets"


def _missing(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def _without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": [')


def _other_architecture(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("Qwen3ForCausalLM", "GPT2LMHeadModel"))


def _broken_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no safetensors")


def _broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "role", "said"),
    [
        (_missing, "serve", "there is no model directory {}"),
        (_without_config, "serve", "{} has no config.json"),
        (_without_weights, "worker", "{} has no weights to load"),
        (_broken_config, "worker", "cannot read {}/config.json"),
        (_other_architecture, "worker", "config.json: architectures ['GPT2LMHeadModel'] are not supported"),
        (_broken_weights, "worker", "cannot read the weights in {}"),
        (_broken_tokenizer, "tokenizer", "tokenizer.json"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], role: str, said: str
) -> None:
    """The process that finds the fault prints the error line; the launcher only logs the exit of its child."""
    folder = make_qwen3(tmp_path / "model")
    damage(folder)
    line = refusal(tmp_path, "serve", str(folder), "--port=0")
    assert line.startswith(f"tandem {role}: error: ") and said.format(folder) in line


@pytest.mark.parametrize(
    ("args", "role", "said"),
    [
        ([f"--chat-template={'{% if %}' * 50}"], "tokenizer", "the chat template is not valid"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, args: list[str], role: str, said: str) -> None:
    line = refusal(tmp_path, "serve", "--port=0", *args)
    assert line.startswith(f"tandem {role}: error: ") and said in line


def test_an_option_that_no_command_line_holds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text(f"chat-template: '{{% {'x' * 200_000} %}}'")
    line = refusal(tmp_path, "serve", "--port=0", f"--config={tmp_path / 'options.yaml'}")
    assert line.startswith("tandem serve: error: the tokenizer cannot be started: ")
