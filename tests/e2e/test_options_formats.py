"""Options of the formats of tool calls and reasoning: what the tokenizer selects at its start, as its log says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import make_qwen3
from tests.e2e.harness import Server, error_lines, run_tandem

TABLE = """
tools = ["bare"]

[markers]
open = "<bare>"
close = "</bare>"

[states.content]
read = "content"
on.open = "call"

[states.call]
read = "json_call"
on.close = "content"
on.done = { to = "content", do = ["end"] }
"""


@pytest.fixture(scope="module")
def selected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model that says nothing of its formats, with options that name them."""
    folder = tmp_path_factory.mktemp("selected")
    (folder / "bare.toml").write_text(TABLE)
    args = ["--tool-call-parser=bare", f"--tool-parser-plugin={folder}/bare.toml", "--reasoning-parser=seed_oss"]
    with Server(str(make_qwen3(folder / "model")), *args, "--chat-template={{ messages[0].content }}") as server:
        yield server


def test_tool_call_parser(selected: Server) -> None:
    assert "tool calls: bare (--tool-call-parser); " in selected.log


def test_reasoning_parser(selected: Server) -> None:
    assert "; reasoning: seed_oss (--reasoning-parser)" in selected.log


def test_tool_parser_plugin(selected: Server, tmp_path: Path) -> None:
    """Its name is one that can be selected; vLLM's Python file is refused."""
    assert "tool calls: bare " in selected.log
    (tmp_path / "parser.py").write_text("class Parser: ...")
    ended = run_tandem("tokenizer", f"--tool-parser-plugin={tmp_path}/parser.py")
    assert ended.returncode == 1
    (line,) = error_lines(ended.stderr)
    assert "parser.py is not a .toml or .json file" in line and "docs/tools.md" in line
