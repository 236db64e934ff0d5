"""What the calls run beside Python: `tandem serve`, and compute-sanitizer (a stand-in)."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from loadtest.gpu import output, sanitizer, serving
from loadtest.gpu.table import Note

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    output.set_folder(tmp_path / "files")
    yield tmp_path / "files"
    output.set_folder(None)


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts a compute-sanitizer into PATH that runs `script`."""
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")


def test_memcheck_without_errors_passes(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, 'echo "$@ $PYTORCH_NO_CUDA_MEMORY_CACHING"; echo "= ERROR SUMMARY: 0 errors"')
    for form, uncached in (("without", "1"), ("with", "")):
        found = sanitizer.run(CUDA, form)
        assert not isinstance(found, Note) and found.data["errors"] == 0
        first = (folder / f"memcheck-{form}-graphs.txt").read_text().splitlines()[0]
        assert first.startswith("--tool memcheck --error-exitcode 86 ")
        assert first.endswith(f"loadtest.gpu.sanitized --device cuda --graphs {form} {uncached}")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo '========= Invalid __global__ read of size 2 bytes'; echo '========= ERROR SUMMARY: 1 error'; exit 86",
         "memcheck: Invalid __global__ read of size 2 bytes ERROR SUMMARY: 1 error"),
        ("echo '========= ERROR SUMMARY: 3 errors'", "memcheck: .*3 errors"),
        ("echo a driver error; exit 3", "status 3: a driver error"),
        ("echo nothing", "memcheck printed no summary: nothing"),
    ],
)  # fmt: skip
def test_memcheck_fails(script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, script)
    with pytest.raises(AssertionError, match=message):
        sanitizer.run(CUDA, "with")


def test_an_unfinished_memcheck_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(sanitizer, "SECONDS", 0.2)
    assert isinstance(sanitizer.run(CUDA, "with"), Note)


def test_a_server_that_ends_is_reported_with_its_last_lines(folder: Path) -> None:
    output.file(serving.LOG).write_text("started\nMemoryError\nthe worker ended\n\n")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        process.wait()
    url = f"http://127.0.0.1:{serving.free_port()}"
    with pytest.raises(AssertionError, match="the server ended with status 3: MemoryError / the worker ended"):
        serving.wait_until_ready(url, process, time.monotonic() + 60)


def test_a_server_that_is_never_ready_is_reported() -> None:
    output.file(serving.LOG).write_text("")
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with pytest.raises(AssertionError, match="not ready after .*: its log is empty"):
                serving.wait_until_ready(f"http://127.0.0.1:{serving.free_port()}", process, time.monotonic())
        finally:
            serving.end(process)
    assert process.returncode == -15


@pytest.mark.long
def test_the_demo_model_is_served_and_answers() -> None:
    found = serving.serve_and_ask(torch.device("cpu"))
    assert "Paris" in found.data["text"]
    assert found.data["usage"]["completion_tokens"] > 0
