"""What the documents say of the code holds: files, functions, request fields and metrics exist under their names."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.cli import MODULES
from services.engine.metrics import EngineMetrics
from services.rpc.telemetry import LinkMessages
from services.shim.metrics import ShimMetrics
from services.shim.reference.page import markdown
from services.telemetry.spans import NoTracing
from services.tokenizer.telemetry import TokenizerTelemetry
from services.worker.telemetry import WorkerMetrics
from tests.fakes import make_facts

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DOCUMENTS = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
PLAIN = ("architecture", "contributing", "life-of-a-request", "operations", "troubleshooting")
MAX_LINE = 120
RENAMES = "0028"
FLAG = re.compile(r"(?<!\S)--[\w-]+")
COMMAND = re.compile(rf"tandem ({'|'.join(MODULES)}) ([^'`#&\n]*)")
NAMED_FILE = re.compile(
    r"\b(?:tests|docs|protos|services|engine_core|kernels|demo|loadtest)/[\w./-]+\.(?:py|md|proto|h|cpp|svg)\b"
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_names_exists(document: Path) -> None:
    if document.name.startswith(RENAMES):
        return  # it lists former names
    named = NAMED_FILE.findall(document.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@cache
def known_flags(command: str) -> set[str]:
    words = [sys.executable, "-m", "services.cli", command, "--help"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return set(FLAG.findall(told.stdout.replace("[", " ")))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_flag_of_a_command_exists(document: Path) -> None:
    for command, rest in COMMAND.findall(document.read_text().replace("\\\n", " ")):
        flags = set(FLAG.findall(rest))
        assert not flags or flags <= known_flags(command), f"tandem {command} {rest}"


def test_the_walk_names_functions_that_are_in_their_files() -> None:
    """Rows of tables: the file in the first cell, names of it in the second."""
    rows = re.findall(r"^\| `([\w/]+\.py)` \| ([^|]+) \|", (DOCS / "life-of-a-request.md").read_text(), re.MULTILINE)
    assert len(rows) > 30
    missing = []
    for path, names in rows:
        source = (ROOT / path).read_text()
        for name in re.findall(r"`([\w.]+)`", names):
            if not all(re.search(rf"\b(?:def|class) {part}\b", source) for part in name.split(".")):
                missing.append(f"{path}: {name}")
    assert missing == []


def test_the_walk_names_nothing_that_is_not_in_the_code() -> None:
    names = re.findall(r"`([A-Za-z_][\w.]*)`", (DOCS / "life-of-a-request.md").read_text())
    sources = [ROOT / "protos", *(ROOT / package for package in ("services", "engine_core", "kernels", "loadtest"))]
    texts = [path.read_text() for root in sources for path in root.rglob("*.*") if path.suffix in (".py", ".proto")]
    known = set(re.findall(r"\w+", "\n".join(texts)))
    assert sorted({name for name in names if not set(name.split(".")) <= known}) == []


def test_the_page_about_the_api_is_fresh() -> None:
    """`make docs` writes it."""
    assert (DOCS / "api.md").read_text() == markdown()


def test_every_metric_is_documented() -> None:
    registry = CollectorRegistry()
    ShimMetrics(registry).of("model")
    EngineMetrics(registry, True, make_facts())
    TokenizerTelemetry(registry, NoTracing())
    WorkerMetrics(registry)
    registry.register(LinkMessages([]))
    names = sorted(family.name for family in registry.collect())
    assert len(names) > 25
    text = (DOCS / "operations.md").read_text()
    assert [name for name in names if not re.search(rf"`{name}(?:_total)?`", text)] == []


@pytest.mark.parametrize("name", PLAIN)
def test_lines_of_prose_have_an_ordinary_length(name: str) -> None:
    lines = (DOCS / f"{name}.md").read_text().splitlines()
    assert [line for line in lines if len(line) > MAX_LINE and not line.lstrip().startswith("|")] == []


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    found = subprocess.run(
        ["git", "grep", "-nIF", str(ROOT) + "/"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert found.stdout == ""
