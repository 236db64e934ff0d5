"""Secrets of the command line move into the environment, and nothing else changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.options.command_line import parse
from services.options.declarations import ServeOptions
from services.options.hide_secrets import without_secrets
from tests.e2e.harness import wait_for

KEYS = ("TANDEM_API_KEY", "TANDEM_ADMIN_API_KEY")


@pytest.mark.parametrize("command", ["serve", "shim"])
def test_both_ways_of_writing(command: str) -> None:
    argv = ["--api-key", "a", "--port=1", "--api-key=b c", "--admin-api-key", "first", "--admin-api-key=-5"]
    assert without_secrets(command, argv) == (["--port=1"], {"TANDEM_API_KEY": "a\nb c", "TANDEM_ADMIN_API_KEY": "-5"})


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("serve", ["demo", "--api-key-file=keys", "--hf-overrides.a", "5", "--no-grpc-no-key", "--", "x"]),
        ("serve", ["--help"]),
        ("worker", ["demo", "--port", "--seed=3"]),
        ("new-secret", ["--out=x"]),
    ],
)
def test_other_arguments_stay(command: str, argv: list[str]) -> None:
    assert without_secrets(command, argv) == (argv, {})


def test_vllms_spelling_of_a_key_is_hidden_as_well() -> None:
    """Otherwise `--api_key` would leave it on the command line, which `ps` shows to every user."""
    argv = ["demo", "--api_key", "a", "-tp", "1", "--api_key=b"]
    rest = ["demo", "--tensor-parallel-size", "1"]
    assert without_secrets("serve", argv) == (rest, {"TANDEM_API_KEY": "a\nb"})
    assert parse("serve", rest).without_effect == ("--tensor-parallel-size",)


def test_several_keys_behind_one_flag_are_hidden() -> None:
    assert without_secrets("serve", ["demo", "--api-key", "a", "b"]) == (["demo"], {"TANDEM_API_KEY": "a\nb"})


TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=0x24F, categories=["L", "N", "P", "S"]), min_size=1)
KEY = TEXT.filter(lambda text: not text.startswith("-"))
OTHERS = st.sampled_from(
    [
        ["--port=1"],
        ["--host", "::1"],
        ["--no-grpc-no-key"],
        ["--served-model-name", "a", "b"],
        ["--hf-overrides.x", "1"],
    ]
)
SECRETS = st.tuples(st.sampled_from(["--api-key", "--admin-api-key"]), KEY, st.booleans()).map(
    lambda found: [f"{found[0]}={found[1]}"] if found[2] else [found[0], found[1]]
)


@settings(deadline=None)
@given(st.lists(OTHERS | SECRETS, max_size=6), st.sampled_from([[], ["demo"]]))
def test_the_options_are_the_same(parts: list[list[str]], model: list[str]) -> None:
    argv = [*model, *(text for part in parts for text in part)]
    with pytest.MonkeyPatch.context() as patch:
        for name in KEYS:
            patch.delenv(name, raising=False)
        expected: ServeOptions = parse("serve", argv)
        rest, variables = without_secrets("serve", argv)
        for name, value in variables.items():
            patch.setenv(name, value)
        assert parse("serve", rest) == expected
    assert not [text for text in rest if "api-key" in text]


SHOW = """import sys, threading
from services.options.hide_secrets import hide_secrets
hide_secrets("shim", sys.argv[1:])
print(sys.argv[1:], sys.flags.utf8_mode, flush=True)
threading.Event().wait()
"""


def test_the_process_stays_the_same(tmp_path: Path) -> None:
    """Its pid, its interpreter's flags, its inherited descriptors."""
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    reader, writer = os.pipe()
    argv = [sys.executable, "-X", "utf8", str(script), "--api-key=a secret", "--port=1"]
    env = {**os.environ, "TANDEM_API_KEY": "overridden", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(argv, env=env, pass_fds=[writer], stdout=subprocess.PIPE, text=True) as process:
        os.close(writer)
        try:
            assert process.stdout is not None and process.stdout.readline() == "['--port=1'] 1\n"
            folder = Path(f"/proc/{process.pid}")
            assert b"secret" not in (folder / "cmdline").read_bytes()
            assert b"\0TANDEM_API_KEY=a secret\0" in b"\0" + (folder / "environ").read_bytes()
            wait_for(lambda: (folder / f"fd/{writer}").exists(), "the pipe is still open", 1)
        finally:
            process.kill()
    os.close(reader)
