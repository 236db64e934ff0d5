"""`make gpu-check`, or `python -m loadtest.gpu` in the repository's root: all checks that need a GPU, as one table.

The exit status is 1 when a check fails, or when `--only` selects none. Without a GPU every row says "not run" and the
status is 0. `--device cpu` runs a small part through Triton's interpreter, to test these scripts. docs/gpu.md says how
to read the table.

Checks run in child processes: after an illegal memory access a process can no longer use the device. Such a check
fails, and a new process runs the next one. After `--seconds`, unfinished checks are "not run", which is no failure; if
no process has listed its checks by then, the run fails.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NoReturn

from loadtest.gpu.child import serve
from loadtest.gpu.children import Children
from loadtest.gpu.table import HEADER, Row
from tests.interpreter import interpret

SECONDS = 540.0
PROCESSES = min(8, os.cpu_count() or 1)
CHILD = (sys.executable, "-m", "loadtest.gpu")


def main(argv: Sequence[str] | None = None, child: Sequence[str] = CHILD) -> int:
    """Prints the table of the checks that `argv` selects. Returns the exit status; exits with 2 for a wrong command
    line.

    `child` is the command of a child process, to which this function appends --child and the options. With --child it
    runs as that process and does not return.
    """
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu", description="Checks that need a GPU, as one table.")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a small part, through Triton's interpreter"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="run the checks with TEXT in their name")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="time limit of the whole run (default: %(default)s)"
    )
    parser.add_argument("--processes", type=int, default=PROCESSES, help="child processes (default: %(default)s)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        run_child(args.device, args.only)
    print(HEADER, flush=True)
    if args.device == "cuda" and not has_gpu():
        for name in names(args.only):
            print(Row(name, "not run", ""))
        print("torch finds no GPU: nothing was checked")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        command = [*child, "--child", "--device", args.device, "--only", args.only]
        rows = Children(command, scratch, args.processes, began + args.seconds).rows()
    results = [row.result for row in rows]
    failed, not_run = results.count("FAIL"), results.count("not run")
    closing = f"{len(rows)} checks, {failed} failed" if rows else f"no check has {args.only!r} in its name"
    if not_run:
        closing += f", {not_run} not run within {args.seconds:.0f} seconds"
    print(closing)
    return 1 if failed or not rows else 0


def has_gpu() -> bool:
    import torch  # slow to import: only where it is needed

    return torch.cuda.is_available()


def names(only: str) -> list[str]:
    """Returns the names of the checks that a GPU would run and that have `only` in their name."""
    import torch

    from loadtest.gpu.checks import all_checks

    return [check.name for check in all_checks(torch.device("cuda")) if only in check.name]


def run_child(device_name: str, only: str) -> NoReturn:
    """Runs in a child: runs the checks that the parent asks for on stdin, among those with `only` in their name.

    When stdin closes or the device is lost, ends the process with status 0.
    """
    # Triton reads the variable when it is imported.
    if device_name == "cpu":
        interpret()
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    import torch

    from loadtest.gpu.checks import all_checks

    device = torch.device(device_name)

    def works() -> bool:
        try:
            torch.zeros(1, device=device).add_(1).item()
        except RuntimeError:
            return False
        return True

    serve([check for check in all_checks(device) if only in check.name], works)
    # Skips interpreter shutdown, in which a process without its device can hang.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
