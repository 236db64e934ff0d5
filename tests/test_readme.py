"""What the README says holds: its commands run, its figures stand in the pages that it names, its files exist."""

import ast
import json
import re
import shlex
from pathlib import Path

from services.cli import BENCHMARKS, MODULES
from services.shim.apis.chat.schema import ChatRequest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
MAX_WORDS = 900
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
COMPARED = re.search(r"^## Against vLLM\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """The words of every command in the README; continued lines are one."""
    lines = "".join(text for language, text in FENCED if not language).replace("\\\n", " ").splitlines()
    found = [line.split("  #")[0] for line in lines if line.startswith((".venv/", "make ", "docker ", "curl "))]
    return [shlex.split(line) for line in found]


def compared_rows() -> list[list[str]]:
    """The rows of the table against vLLM, by cells."""
    assert COMPARED is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in COMPARED[1].splitlines() if "|" in line]
    return [row for row in rows[2:] if len(row) == 5]


def test_it_is_short() -> None:
    assert len(README.split()) < MAX_WORDS


def test_it_makes_three_promises() -> None:
    assert len(re.findall(r"^\d\. \*\*", README, re.MULTILINE)) == 3


def test_every_tandem_command_exists() -> None:
    tandem = [words[1:] for words in commands() if words[0].endswith("/tandem")]
    assert len(tandem) >= 4
    for command, *rest in tandem:
        assert (command in MODULES) if command != "bench" else (rest[0] in BENCHMARKS), command


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {words[1] for words in commands() if words[0] == "make"} | set(re.findall(r"`make ([\w-]+)", README))
    assert {"install", "serve", "test"} <= targets
    assert [target for target in sorted(targets) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_the_first_request_is_valid() -> None:
    (curl,) = [words for words in commands() if words[0] == "curl"]
    ChatRequest.model_validate(json.loads(curl[curl.index("-d") + 1]))


def test_the_python_examples_are_python() -> None:
    """tests/e2e/test_tools.py runs those about tools and JSON."""
    examples = [text for language, text in FENCED if language == "python"]
    assert len(examples) == 3
    for example in examples:
        ast.parse(example)


def test_the_pipe_names_every_process() -> None:
    assert re.findall(r"^\| `tandem (\w+)` \|", README, re.MULTILINE) == ["shim", "tokenizer", "engine", "worker"]


def test_the_table_against_vllm_names_processors_and_shows_where_tandem_is_behind() -> None:
    rows = compared_rows()
    assert len(rows) >= 5
    assert all(row[0] for row in rows)
    assert any("behind" in row[-1] for row in rows)


def test_figures_against_vllm_stand_in_the_page_that_has_their_command() -> None:
    """A row with a link has its source there, the others in the page that the section links."""
    assert COMPARED is not None
    (page,) = re.findall(r"\((docs/benchmarks/[^)]+)\)", COMPARED[1])
    assert "python -m loadtest.serving.compare" in (ROOT / page).read_text()
    for row in compared_rows():
        source = next(iter(re.findall(r"\((docs/[^)]+)\)", row[1])), page)
        figures = re.findall(r"\d+\.\d+", " ".join(row[2:]))
        text = (ROOT / source).read_text()
        assert figures and [figure for figure in figures if figure not in text] == [], row


def test_it_names_the_python_versions_of_the_package() -> None:
    assert "Python 3.11 or 3.12" in README
    assert 'requires-python = ">=3.11,<3.13"' in (ROOT / "pyproject.toml").read_text()
