"""`make gpu-check` on a machine without a GPU: its small part passes, and a wrong kernel makes it fail."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from loadtest.gpu.__main__ import main
from loadtest.gpu.child import Child
from loadtest.gpu.table import Row

GPUS = ("sm_80", "sm_86", "sm_90")
NUM_COMPILED = 8  # rows for each capability
RUN = "\nfrom loadtest.gpu.__main__ import main\nmain()\n"
WRONG_NORM = """
import os
os.environ["TRITON_INTERPRET"] = "1"
from kernels.gpu import norm
import torch
right = norm.norm
norm.norm = lambda x, *how: right(x, *how) * (1.01 if x.dtype == torch.float32 else 1)
"""
DIES = """
from loadtest.gpu import kernels
import os
right = kernels.check_of
def check_of(name, *rest):
    return kernels.Check(name, lambda: os._exit(3)) if "activate float32" in name else right(name, *rest)
kernels.check_of = check_of
"""
# Checks without a device.
ENDLESS = """
import os, sys, threading
from loadtest.gpu.child import serve
from loadtest.gpu.table import Check
def dies():
    threading.Event().wait(3)
    os._exit(3)
middle = {"endless": threading.Event().wait, "dies": dies}
checks = [Check("first", lambda: ""), *(Check(name, middle[name]) for name in NAMES), Check("last", lambda: "")]
serve(checks, lambda: True)
"""
# Lists two checks, then ends without reading an index.
DEAF = """
from loadtest.gpu.child import serve
from loadtest.gpu.table import Check
serve([Check("a", lambda: ""), Check("b", lambda: "")], lambda: True, ())
"""
GONE = """
from loadtest.gpu.child import serve
from loadtest.gpu.table import Check
used = []
def use():
    used.append(1)
    raise RuntimeError("an illegal memory access")
def fresh():
    assert not used
    return ""
serve([Check("gone", use), Check("fresh", fresh)], lambda: False)
"""
# Three checks that pass only if they run concurrently, and one that passes only if none of them runs.
TOGETHER = """
import os, pathlib, threading
from loadtest.gpu.child import serve
from loadtest.gpu.table import Check
folder = pathlib.Path(os.environ["TMPDIR"])
def meet(name):
    (folder / name).touch()
    while len(list(folder.iterdir())) < 3:
        threading.Event().wait(0.01)
    threading.Event().wait(0.3)
    (folder / name).rename(folder / f"{name} is done")
    return ""
def alone():
    assert len(list(folder.glob("*is done"))) == 3
    return ""
concurrent = [Check(name, lambda name=name: meet(name), alone=False) for name in "abc"]
serve([Check("alone", alone), *concurrent], lambda: True)
"""


def child(code: str) -> tuple[str, str, str]:
    return sys.executable, "-c", code


def rows(out: str) -> dict[str, str]:
    """Name -> result."""
    cells = [[cell.strip() for cell in line.split(" | ")] for line in out.splitlines() if " | " in line]
    return {name: result for name, result, *_ in cells[1:]}


def test_a_wrong_kernel_is_a_failed_row_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--only", "kernel norm of"], child(WRONG_NORM + RUN)) == 1
    found = rows(capsys.readouterr().out)
    results = {"bf16": "ok", "float32": "FAIL", "float16": "ok"}
    assert found == {f"kernel norm of parts {name}": results[name] for name in results}


def test_a_check_that_ends_its_process_is_a_failed_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--only", "kernel activate"], child(DIES + RUN)) == 1
    found = rows(capsys.readouterr().out)
    assert found == {"kernel activate bf16": "ok", "kernel activate float32": "FAIL", "kernel activate float16": "ok"}


def test_a_process_that_ends_before_it_reads_an_index_is_a_failed_row(tmp_path: Path) -> None:
    ended = Child([*child(DEAF)], str(tmp_path), time.monotonic() + 60)
    ended.start()
    assert ended._process is not None
    os.waitid(os.P_PID, ended._process.pid, os.WEXITED | os.WNOWAIT)
    assert ended.run(0, "a") == Row("a", "FAIL", "the process ended with status 0 before it answered")
    assert ended._process is None


def test_after_a_lost_device_a_new_process_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu"], child(GONE)) == 1
    assert rows(capsys.readouterr().out) == {"gone": "FAIL", "fresh": "ok"}


def test_checks_run_concurrently_unless_marked_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--seconds", "60", "--processes", "3"], child(TOGETHER)) == 0
    assert rows(capsys.readouterr().out) == dict.fromkeys(["alone", "a", "b", "c"], "ok")


def test_unfinished_checks_at_the_time_limit_are_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The closing line counts them; they are no failures."""
    assert main(["--device", "cpu", "--seconds", "3"], child("NAMES = ['endless']" + ENDLESS)) == 0
    out = capsys.readouterr().out
    assert rows(out) == {"first": "ok", "endless": "not run", "last": "not run"}
    assert out.endswith("3 checks, 0 failed, 2 not run\n")


def test_a_new_process_gets_no_extra_time(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert main(["--device", "cpu", "--seconds", "5"], child("NAMES = ['dies', 'endless']" + ENDLESS)) == 1
    assert time.monotonic() - began < 3 + 5
    assert rows(capsys.readouterr().out) == {"first": "ok", "dies": "FAIL", "endless": "not run", "last": "not run"}


def test_without_time_for_any_check_the_run_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--seconds", "0"], child("NAMES = []" + ENDLESS)) == 1
    assert rows(capsys.readouterr().out) == {"start": "FAIL"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_all_rows_are_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.endswith("torch finds no GPU: nothing was checked\n")
    assert len(rows(out)) > 50 and set(rows(out).values()) == {"not run"}


@pytest.mark.timeout(900)  # all kernels on one slow core
@pytest.mark.parametrize(
    ("only", "count"),
    [("draw from 151936", len(GPUS)), *(pytest.param(gpu, NUM_COMPILED, marks=pytest.mark.long) for gpu in GPUS)],
)
def test_every_kernel_compiles_for_gpus(only: str, count: int, tmp_path: Path) -> None:
    """The draw for all GPUs; every kernel for all GPUs, types and head sizes with `make test-long`."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "loadtest.gpu.compiled", only]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" ok ") == count, ended.stdout
