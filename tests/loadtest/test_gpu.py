"""`make gpu-check` itself, on a machine without a GPU: its small part passes, and what is wrong makes it fail."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
import torch

from loadtest.gpu.__main__ import main

NUM_COMPILED = 7  # rows for each capability
# What the server needs and the worker's model does not. Imports of them fail in the child.
FOREIGN = ("grpc", "google", "zmq", "starlette", "pydantic", "uvicorn", "uvloop", "pytest", "hypothesis")
BLOCK = f"import sys; sys.modules.update(dict.fromkeys({FOREIGN!r}))"
RUN = "\nfrom loadtest.gpu.__main__ import main\nmain()\n"
WRONG_NORM = """
import os
os.environ["TRITON_INTERPRET"] = "1"
from kernels.gpu import norm
import torch
right = norm.rms_norm
norm.rms_norm = lambda x, weight, eps: right(x, weight, eps) * (1.01 if x.dtype == torch.float32 else 1)
"""
DIES = """
from loadtest.gpu import kernels
import os
right = kernels.check_of
def check_of(name, *rest):
    return kernels.Check(name, lambda: os._exit(3)) if "silu_mul float32" in name else right(name, *rest)
kernels.check_of = check_of
"""
# Checks that need nothing.
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
# Three that pass when all are under way together, and a fourth that passes when none of them is.
TOGETHER = """
import os, pathlib, threading
from loadtest.gpu.child import serve
from loadtest.gpu.table import Check
place = pathlib.Path(os.environ["TMPDIR"])
def meet(name):
    (place / name).touch()
    while len(list(place.iterdir())) < 3:
        threading.Event().wait(0.01)
    threading.Event().wait(0.3)
    (place / name).rename(place / f"{name} is done")
    return ""
def alone():
    assert len(list(place.glob("*is done"))) == 3
    return ""
beside = [Check(name, lambda name=name: meet(name), alone=False) for name in "abc"]
serve([Check("alone", alone), *beside], lambda: True)
"""


def child(code: str) -> tuple[str, str, str]:
    return sys.executable, "-c", code


def rows(out: str) -> dict[str, str]:
    """Name -> result."""
    cells = [[cell.strip() for cell in line.split(" | ")] for line in out.splitlines() if " | " in line]
    return {name: result for name, result, *_ in cells[1:]}


@pytest.mark.parametrize(("only", "count"), [("worker in", 4), pytest.param("", 68, marks=pytest.mark.long)])
def test_the_small_part_passes_with_nothing_of_the_server_installed(
    only: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loading, steps and kernels of a whole model; all rows with `make test-long`."""
    assert main(["--device", "cpu", "--only", only], child(BLOCK + RUN)) == 0, capsys.readouterr().out
    found = rows(capsys.readouterr().out)
    assert set(found.values()) == {"ok"}
    assert len(found) == count


def test_a_wrong_kernel_is_a_failed_row_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--only", "_norm"], child(WRONG_NORM + RUN)) == 1
    found = rows(capsys.readouterr().out)
    assert found == {"kernel rms_norm bf16": "ok", "kernel rms_norm float32": "FAIL", "kernel rms_norm float16": "ok"}


def test_a_check_that_takes_its_process_along_is_a_failed_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--only", "silu_mul"], child(DIES + RUN)) == 1
    found = rows(capsys.readouterr().out)
    assert found == {"kernel silu_mul bf16": "ok", "kernel silu_mul float32": "FAIL", "kernel silu_mul float16": "ok"}


def test_a_device_that_is_gone_is_left_to_a_new_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu"], child(GONE)) == 1
    assert rows(capsys.readouterr().out) == {"gone": "FAIL", "fresh": "ok"}


def test_checks_run_beside_each_other_but_for_those_that_must_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--seconds", "60", "--processes", "3"], child(TOGETHER)) == 0
    assert rows(capsys.readouterr().out) == dict.fromkeys(["alone", "a", "b", "c"], "ok")


def test_what_is_not_done_when_the_time_is_over_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Said, and no failure."""
    assert main(["--device", "cpu", "--seconds", "3"], child("NAMES = ['endless']" + ENDLESS)) == 0
    out = capsys.readouterr().out
    assert rows(out) == {"first": "ok", "endless": "not run", "last": "not run"}
    assert out.endswith("3 checks, 0 failed, 2 not run within 3 seconds\n")


def test_a_new_process_has_no_time_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert main(["--device", "cpu", "--seconds", "5"], child("NAMES = ['dies', 'endless']" + ENDLESS)) == 1
    assert time.monotonic() - began < 3 + 5
    assert rows(capsys.readouterr().out) == {"first": "ok", "dies": "FAIL", "endless": "not run", "last": "not run"}


def test_without_time_for_any_check_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--seconds", "0"], child("NAMES = []" + ENDLESS)) == 1
    assert rows(capsys.readouterr().out) == {"start": "FAIL"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.endswith("torch finds no GPU: nothing was checked\n")
    assert len(rows(out)) > 50 and set(rows(out).values()) == {"not run"}


@pytest.mark.parametrize(
    ("only", "count"),
    [(", bf16, head size 128", 1), pytest.param("", NUM_COMPILED, marks=pytest.mark.long)],
    ids=["served", "all"],
)
def test_every_kernel_compiles_for_gpus(only: str, count: int, tmp_path: Path) -> None:
    """What models are served with; all types and head sizes, and the draw, with `make test-long`."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "loadtest.gpu.compiled"]
    with contextlib.ExitStack() as stack:
        compilers = [
            stack.enter_context(
                subprocess.Popen([*command, gpu + only], env=environment, stdout=PIPE, stderr=STDOUT, text=True)
            )
            for gpu in ("sm_80", "sm_90")
        ]
        told = [compiler.communicate()[0] for compiler in compilers]
    assert [compiler.returncode for compiler in compilers] == [0, 0], "".join(told)
    assert all(text.count(" ok ") == count for text in told), "".join(told)
