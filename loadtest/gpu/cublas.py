"""The cuBLAS question: does it give a row the same bits in any number of rows, and those of kernels/gpu/linear.py?

If so, it can multiply many rows without giving up batch invariance. Without a workspace it cannot divide a sum among
programs (split-K). vLLM's batch-invariant mode relies on that on sm_90. cuBLAS takes its workspaces from
the environment when it is first used, so the comparison (cublas_bits.py) runs in a process of its own:

    python -m loadtest.gpu.cublas --backend cublaslt

It prints one JSON object. Triton is imported late, because it reads its environment then.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
from typing import Any

import torch

from loadtest.gpu.table import Check, Note
from tests.interpreter import interpret

BACKENDS = ("cublaslt", "cublas")  # of torch.backends.cuda.preferred_blas_library
SECONDS = 60  # time limit of the process
Answer = dict[str, Any]


def checks(device: torch.device) -> list[Check]:
    return [
        Check(
            f"the bits of {backend} in any number of rows",
            functools.partial(ask, device, backend),
            device.type == "cuda",
        )
        for backend in BACKENDS
    ]


def ask(device: torch.device, backend: str) -> str:
    """Runs the comparison in a process. Returns its answer. Raises subprocess.CalledProcessError if that fails."""
    from loadtest.gpu.engines import release
    from loadtest.gpu.timings import shown

    release()
    command = [sys.executable, "-m", "loadtest.gpu.cublas", "--device", device.type, "--backend", backend]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS
    )
    return shown(device, describe(json.loads(done.stdout.splitlines()[-1])))


def describe(answer: Answer) -> Note:
    """Returns the row's text. Its data are the answer."""
    shapes, fp8 = answer["shapes"], answer["fp8"]

    def count(name: str) -> int:
        return sum(bool(each[name]) for each in shapes.values())

    parts = [
        f"{answer['version']}: {count('equal')} of {len(shapes)} weights have the same bits in any number of rows",
        f"{count('equals_own')} those of one segment of the own kernel",
        f"{count('equals_schedule')} those of the weight's own schedule",
    ]
    unequal = {shape: each["first_rows"] for shape, each in shapes.items() if not each["equal"]}
    if unequal:
        parts.append("equal from so many rows on: " + ", ".join(f"{shape}: {rows}" for shape, rows in unequal.items()))
    for mode in ("exact", "fast"):
        equal = [shape for shape, modes in fp8.items() if modes[mode].get("equal")]
        if fp8:
            parts.append(f"fp8, {mode} sums: {len(equal)} of {len(fp8)} have the same bits in any number of rows")
    return Note("; ".join(parts), **answer)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu.cublas")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--backend", choices=BACKENDS, default=BACKENDS[0])
    args = parser.parse_args()
    if args.device == "cpu":
        interpret()
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    from loadtest.gpu.cublas_bits import answer

    print(json.dumps(answer(torch.device(args.device), args.backend)))


if __name__ == "__main__":
    main()
