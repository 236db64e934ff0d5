"""The entry point `tandem`: which module a command imports and runs, its exit status, and how fast help answers."""

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services import cli
from services.machine.freed_memory import VARIABLE
from services.version import VERSION
from tests.e2e.harness import TANDEM, run_tandem, wait_for
from tests.e2e.test_refusals import refusal

HELP_SECONDS = 0.5


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"], ["bench", "-h"], ["bench", "--help"]], ids=" ".join)
def test_help_lists_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 0
    printed = capsys.readouterr().out
    for command in (*cli.MODULES, *(f"bench {name}" for name in cli.BENCHMARKS), "replay"):
        assert f"\n  {command} " in printed, command


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tandem {VERSION}\n"


def test_every_command_has_a_module_that_exists() -> None:
    """Found without importing it: some need an extra."""
    for name in (*cli.MODULES.values(), *cli.BENCHMARKS.values()):
        assert Path(cli.__file__).parents[1].joinpath(*name.split(".")).with_suffix(".py").is_file(), name


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["nonsense"], "tandem: error: unknown command 'nonsense'; the commands are serve, shim, "),
        (["bench", "nonsense"], "tandem bench: error: unknown command 'nonsense'; the commands are serve, latency, "),
        (["bench"], "tandem bench: error: unknown command ''; the commands are serve, latency, "),
        (["serve", "--nonsense=1"], "tandem serve: error: unrecognized arguments: --nonsense=1"),
        (["new-secret"], "tandem new-secret: error: --out is missing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_has_exit_status_2(argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith(line) and printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nonsense"], "tandem: error: unknown command 'nonsense'; the commands are serve, shim, "),
        (["serve", "--nonsense=1"], "tandem serve: error: unrecognized arguments: --nonsense=1"),
        (["serve", "--port=high"], "tandem serve: error: --port: 'high' is not valid"),
        (["worker", "--listen-fd=3"], "tandem worker: error: unrecognized arguments: --listen-fd=3"),
    ],
)
def test_a_wrong_command_line_is_refused(tmp_path: Path, args: list[str], said: str) -> None:
    assert refusal(tmp_path, *args, status=2).startswith(said)


def test_a_command_gets_its_options_and_returns_its_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    assert cli.main(["new-secret", f"--out={secret}"]) == 0
    assert secret.is_file() and capsys.readouterr().out == f"{secret}: a new secret\n"
    secret.write_bytes(b"short")
    assert cli.main(["new-secret", f"--out={secret}"]) == 1
    assert gc.isenabled(), "switched off during imports only"


def test_characters_outside_the_locale_are_printed_as_escapes(tmp_path: Path) -> None:
    file = tmp_path / "ü"
    ended = run_tandem("new-secret", f"--out={file}", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"})
    assert (ended.returncode, ended.stdout) == (0, f"{tmp_path}/\\xfc: a new secret\n")


@pytest.mark.parametrize("args", [["--help"], ["serve", "--help"], ["--version"]], ids=" ".join)
def test_help_answers_at_once(args: list[str]) -> None:
    def seconds() -> float:
        started = time.monotonic()
        assert run_tandem(*args).returncode == 0
        return time.monotonic() - started

    wait_for(lambda: seconds() < HELP_SECONDS, f"an answer in {HELP_SECONDS} s")  # later, if other tests compute


@pytest.mark.parametrize("args", [["--help"], ["serve", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    argv = [sys.executable, "-X", "importtime", *TANDEM[1:], *args]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rsplit("|", 1)[1].strip() for line in ended.stderr.splitlines() if "|" in line}
    assert "services.options.declarations" in imported
    assert imported & {"torch", "grpc", "zmq", "uvicorn", "huggingface_hub", "yaml", "numpy"} == set()


def test_a_spare_imports_at_a_low_priority_if_it_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take time from the processes that serve."""
    done: list[str] = []
    role = type("Role", (), {"main": staticmethod(lambda options: 0)})
    monkeypatch.setattr(cli, "_import", lambda name: done.append(name) or role)
    monkeypatch.setattr(cli, "keep_giving_back", lambda: None)
    monkeypatch.setattr(cli, "at_low_priority", lambda load: done.append("low") or load())
    assert cli.main(["engine", "--worker=ipc:///nowhere", "--spare-fd=9"]) == 0
    assert cli.main(["engine", "--worker=ipc:///nowhere", "--spare-fd=9", "--load-gently"]) == 0
    assert done == ["services.engine.service", "low", "services.engine.service"]


def test_a_configuration_from_a_pipe_is_read(tmp_path: Path) -> None:
    """The program starts anew before it reads."""
    argv = [sys.executable, "-m", "services.cli", "new-secret", "--config=/dev/stdin"]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    ended = subprocess.run(argv, input=f"out: {tmp_path / 'secret'}\n", text=True, capture_output=True, env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "secret").exists()


def test_secrets_that_stay_on_the_command_line_are_told() -> None:
    program = "from services.cli import main; raise SystemExit(main())"
    argv = [sys.executable, "-", "shim", "--api-key=k", "--port=x"]
    ended = subprocess.run(argv, input=program, text=True, capture_output=True)
    assert ended.returncode == 2
    warning, error = ended.stderr.splitlines()
    assert warning == (
        "tandem shim: warning: every user of this machine can read the secrets on the command line (another program"
        " runs it); set TANDEM_API_KEY instead"
    )
    assert error.startswith("tandem shim: error: --port: 'x' is not valid")


def test_another_program_that_runs_a_command_does_its_work_once(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from services.cli import main\nprint('work', flush=True)\nraise SystemExit(main())")
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    argv = [sys.executable, str(program), "new-secret", f"--out={tmp_path / 'secret'}"]
    assert subprocess.run(argv, text=True, capture_output=True, env=environment).stdout.count("work\n") == 1
    assert (tmp_path / "secret").exists()


@pytest.mark.parametrize("key", ["", "a\nb"])
def test_a_key_that_is_none_is_refused_before_it_is_hidden(key: str) -> None:
    """An empty variable counts as none: the server would be open."""
    argv = [sys.executable, "-m", "services.cli", "shim", "--api-key", "good", "--api-key", key, "--port=x"]
    ended = subprocess.run(argv, text=True, capture_output=True, env={**os.environ, "TANDEM_API_KEY": "real"})
    assert ended.returncode == 2 and ended.stderr.startswith("tandem shim: error: --api-key: must ")
