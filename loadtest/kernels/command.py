"""`tandem bench kernels`: each compiled CPU kernel, compared with its plain torch twin and with the machine's limit.

Kernel and twin run the same calls on inputs of the same shapes with the same number of threads. They run one after the
other, because torch's threads spin for a moment after their work. A kernel's limit is the time that its bytes or its
operations, whichever take longer, need at the machine's highest rates. Times include the call from Python, as in a
step.
"""

import argparse
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce

import torch

from kernels.cpu.library import VARIANTS, KernelsMissing, Library, VariantRefused, load
from kernels.cpu.ops import CpuOps
from kernels.torch_ops import TorchOps
from loadtest.flag_values import count
from loadtest.kernels.cases import Case, Run, Shape, cases
from loadtest.kernels.limits import Limits, Work, other_cpu_seconds, probe
from services.errors import Fatal
from services.machine import available_cores, cpu_model, last_cache_bytes
from services.model_files.resolve import resolve
from services.options.declarations import WorkerOptions, settings_of
from services.worker.checkpoint import read_json
from services.worker.errors import ModelError
from services.worker.models.describe import describe

REPEATS = 15
MIN_REPEATS = 3
REPEAT_SECONDS = 0.002  # short calls are timed in groups of this length
CASE_SECONDS = 0.5  # after this time a slow case is not repeated again
QUIET_SECONDS = 0.02  # pause after which torch's threads sleep
COLUMNS = ("kernel", "shape", "µs", "twin µs", "twin / kernel", "limit µs", "share of limit")


@dataclass(frozen=True)
class Timed:
    """The median seconds of one call: `seconds` of the kernel, `twin_seconds` of its plain torch twin."""

    kernel: str
    shape: str
    work: Work
    seconds: float
    twin_seconds: float

    def cells(self, limits: Limits) -> tuple[str, ...]:
        limit = limits.seconds(self.work)
        return (
            self.kernel,
            self.shape,
            f"{1e6 * self.seconds:.1f}",
            f"{1e6 * self.twin_seconds:.1f}",
            f"{self.twin_seconds / self.seconds:.2f}",
            f"{1e6 * limit:.2f}",
            f"{limit / self.seconds:.1%}",
        )


def median_seconds(runs: Sequence[Run], repeats: int) -> float:
    """Returns the median seconds of one call, over `repeats` measurements; after CASE_SECONDS over fewer. MIN_REPEATS
    are made in any case. The runs take turns."""
    turns = itertools.cycle(runs)
    for _ in range(2):  # the first call allocates and prepares
        began = time.perf_counter()
        next(turns)()
        once = time.perf_counter() - began
    calls = max(1, int(REPEAT_SECONDS / once))
    times: list[float] = []
    deadline = time.perf_counter() + CASE_SECONDS
    while len(times) < MIN_REPEATS or (len(times) < repeats and time.perf_counter() < deadline):
        began = time.perf_counter()
        for run in itertools.islice(turns, calls):
            run()
        times.append((time.perf_counter() - began) / calls)
    return statistics.median(times)


def measure(ops: CpuOps, all_cases: Iterable[Case], repeats: int) -> Iterator[Timed]:
    """Yields the times of each case, on `ops` and on the plain torch twin."""
    twin = TorchOps()
    for case in all_cases:
        time.sleep(QUIET_SECONDS)
        seconds = median_seconds(case.make(ops), repeats)
        yield Timed(case.kernel, case.shape, case.work, seconds, median_seconds(case.make(twin), repeats))


def report(model: str, variant: str, threads: int, limits: Limits, others: float, rows: Sequence[Timed]) -> str:
    """Returns a heading and the table of `rows`, as Markdown. `others`: cores used by other processes, on average; NaN:
    unknown."""
    used = "an unknown number of" if math.isnan(others) else f"{max(0.0, others):.1f}"
    head = [
        f"Kernels {variant} in bfloat16, shapes of {model}; {cpu_model()}, {threads} of {os.cpu_count()} threads, "
        f"{date.today()}. Other processes used {used} cores during the run.",
        f"Limit: {limits.memory_bytes / 1e9:.1f} GB/s from memory, {limits.cache_bytes / 1e9:.1f} GB/s within caches, "
        f"{limits.operations / 1e9:.1f} Gop/s. Memory and operations are the best of a probe (a large read; torch's "
        "square products) and of all rows below; the machine's true limit may be higher.",
    ]
    table = [COLUMNS, ("---", "---", *["---:"] * (len(COLUMNS) - 2)), *(row.cells(limits) for row in rows)]
    return "\n".join(["\n".join(head), "", *(f"| {' | '.join(cells)} |" for cells in table)]) + "\n"


def main(argv: Sequence[str]) -> int:
    """Runs the command line `argv` and prints one table. Returns the exit status: 0, or 1 if the model or the kernels
    cannot be loaded. Exits with 2 for a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="tandem bench kernels",
        description="Time each compiled CPU kernel and compare it with plain torch and with the machine's limit.",
    )
    parser.add_argument("--cpu-threads", type=count, help="threads of a kernel; default: all available cores")
    (variable,) = settings_of(WorkerOptions)["cpu_kernels"].env
    parser.add_argument(
        "--cpu-kernels",
        choices=VARIANTS,
        default=os.environ.get(variable) or None,
        help=f"instruction set; default: {variable} in the environment, or the fastest that this machine supports",
    )
    parser.add_argument("--repeats", type=count, default=REPEATS, help="measurements of each case, at most")
    parser.add_argument("--model", help="directory or hub id of the model with the shapes; default: Qwen3-0.6B's")
    args = parser.parse_args(argv)
    if args.cpu_kernels not in (None, *VARIANTS):
        parser.error(f"{variable}: {args.cpu_kernels!r} is not one of {', '.join(VARIANTS)}")
    try:
        shape = Shape() if args.model is None else _shape_of(args.model)
        library = load(args.cpu_kernels)
    except VariantRefused as error:
        return _fail(f"--cpu-kernels {error}")
    except (Fatal, ModelError, KernelsMissing) as error:
        return _fail(str(error))
    threads = args.cpu_threads or available_cores()
    sys.stdout.write(_bench(library, shape, args.model or "Qwen3-0.6B", threads, args.repeats))
    return 0


def _fail(message: str) -> int:
    sys.stderr.write(f"tandem bench kernels: error: {message}\n")
    return 1


def _shape_of(model: str) -> Shape:
    """Returns the sizes of a model, given as directory or hub id. Raises Fatal and ModelError."""
    return Shape.of(describe(read_json(resolve(model, None, weights=False) / "config.json")))


@torch.inference_mode()
def _bench(library: Library, shape: Shape, model: str, threads: int, repeats: int) -> str:
    ops = CpuOps(library, threads)
    torch.manual_seed(0)
    began, others = time.perf_counter(), other_cpu_seconds()
    probed = probe(threads)
    rows = list(measure(ops, cases(shape, 2 * last_cache_bytes()), repeats))
    limits = reduce(lambda found, row: found.raised(row.work, row.seconds), rows, probed)
    used = (other_cpu_seconds() - others) / (time.perf_counter() - began)
    return report(model, library.NAME, threads, limits, used, rows)
