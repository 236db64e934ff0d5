"""The calls of `python -m loadtest.gpu` on a CPU, where only the packages that docs/gpu.md names can be imported."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from loadtest.gpu.calls import CALLS, checks_of
from loadtest.gpu.table import CALL_SECONDS
from loadtest.gpu.wheels import CARRIED, THERE
from tests.loadtest.blocked import ROOT, environment, with_dependencies

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def names(call: str, device: torch.device = CUDA) -> list[str]:
    return [check.name for check in checks_of(call, device, [])]


def run_call(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs a call on the CPU with its output in `folder`/out."""
    command = [sys.executable, "-m", "loadtest.gpu", "--device", "cpu", "--out", str(folder / "out"), *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment(folder), capture_output=True, text=True, check=False
    )  # fmt: skip


def rows_of(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first line and the rows of rows.jsonl."""
    first, *rows = (json.loads(line) for line in (folder / "out" / "rows.jsonl").read_text().splitlines())
    return first, rows


@pytest.mark.timeout(900)  # a whole call on one slow core
@pytest.mark.parametrize(
    ("call", "only"),
    [
        ("D", ("machine", "weights in int8", "time activate")),
        *(pytest.param(call, (), marks=pytest.mark.long) for call in "ABCD"),
    ],
)
def test_a_call_runs_to_its_end_without_other_packages(call: str, only: tuple[str, ...], tmp_path: Path) -> None:
    """One row of each kind; whole calls with `make test-long`. Nothing fails; rows without a GPU's clock say why."""
    arguments = ["--call", call, "--seconds", "840", "--processes", "2", *(("--only", *only) if only else ())]
    ended = run_call(tmp_path, *arguments)
    log = (tmp_path / "out" / "log.txt").read_text()
    assert ended.returncode == 0, ended.stdout + ended.stderr + log
    first, rows = rows_of(tmp_path)
    assert (first["call"], first["device"]) == (call, "cpu")
    assert {row["name"] for row in rows} >= {check.name for check in checks_of(call, CPU, list(only))}
    assert {row["detail"] for row in rows if row["result"] == "not run"} <= {"needs a GPU"}
    assert {row["result"] for row in rows} <= {"ok", "note", "not run"}
    assert all(row["seconds"] > 0 for row in rows if row["result"] == "ok" and row["data"])
    assert sum(row["result"] == "ok" for row in rows) >= 2
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == []
    assert "Traceback" not in log
    assert max(map(len, ended.stdout.splitlines())) < 60 + 7 + 160 + 20


def test_the_environment_of_the_calls_lacks_other_packages(tmp_path: Path) -> None:
    """Otherwise the test above would show nothing."""
    code = """
import importlib, importlib.metadata
import msgspec, torch, triton, services.cli
for name in ("cryptography", "hypothesis", "opentelemetry", "aiohttp", "kernels.cpu._portable"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass
    else:
        raise SystemExit(f"{name} was imported")
importlib.metadata.version("llguidance")
try:
    importlib.metadata.version("cryptography")
except importlib.metadata.PackageNotFoundError:
    print("blocked")
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert ended.stdout == "blocked\n", ended.stderr


def test_the_document_names_what_the_machine_must_have() -> None:
    document = (ROOT / "docs" / "gpu.md").read_text()
    assert [name for name in THERE if f" {name}" not in document] == []
    assert not set(CARRIED) & set(THERE)
    assert with_dependencies(("starlette",)) > {"starlette"}, "dependencies are found"


def test_the_calls_have_all_checks_between_them() -> None:
    whole = names("all")
    assert len(whole) == len(set(whole))
    assert set(whole) == {name for call in "ABCD" for name in names(call)}
    twice = {name for name in whole if sum(name in names(call) for call in "ABCD") > 1}
    assert all(name in names("A") and name in names("C") for name in twice - {"machine"}), twice
    assert {name: call.seconds for name, call in CALLS.items()} == CALL_SECONDS


def test_on_a_cpu_every_check_of_a_gpu_has_a_row() -> None:
    for call in CALLS:
        assert set(names(call, CPU)) >= set(names(call)), call


@pytest.mark.parametrize("call", CALLS)
def test_compiling_checks_come_before_timed_ones(call: str) -> None:
    checks = checks_of(call, CUDA, [])
    if call in "AC":
        assert [check.name for check in checks if not check.alone][1].startswith("compile a step of 0.6B")
    assert not any(check.alone for check in checks if check.name.startswith("compile"))
    assert all(check.alone for check in checks if check.name.startswith("time "))


def test_only_takes_several_texts() -> None:
    found = [check.name for check in checks_of("D", CUDA, ["time draw greedy, 1 ", "machine"])]
    assert found == ["machine", "time draw greedy, 1 x 151936"]
