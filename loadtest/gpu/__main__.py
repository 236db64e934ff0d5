"""`make gpu-check`, or `python -m loadtest.gpu` in the repository's root: all that needs a GPU, as one table.

Returns 1 when a check fails. Where there is no GPU, every row says so, and it returns 0. `--device cpu` runs a small
part through Triton's interpreter, which proves these scripts. Needs torch, triton, numpy, msgspec, safetensors and
transformers; tandem itself need not be installed.

The checks run in processes of their own. A wrong kernel can take the device away from its process for good: then that
check fails, and a new process goes on with the next. After `--seconds` all of it ends: what was not done by then has
rows that say so, and is no failure.
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
    """`child` is the command that runs the checks, to which its arguments are appended."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu", description="Checks that need a GPU, as one table.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a small part, interpreted")
    parser.add_argument("--only", default="", metavar="TEXT", help="the checks whose name contains TEXT")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of all together (%(default)s)")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="that share checks (%(default)s)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        run_child(args.device, args.only)
    print(HEADER, flush=True)
    if args.device == "cuda" and not has_gpu():
        for name in names(args.only):
            print(Row(name, "not run", ""))
        print("no GPU here that torch can use: nothing was checked")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        command = [*child, "--child", "--device", args.device, "--only", args.only]
        rows = Children(command, scratch, args.processes, began + args.seconds).rows()
    results = [row.result for row in rows]
    failed, left_out = results.count("FAIL"), results.count("not run")
    closing = f"{len(rows)} checks, {failed} failed" if rows else "no check has such a name"
    if left_out:
        closing += f", {left_out} not run: the {args.seconds:.0f} seconds were over"
    print(closing)
    return 1 if failed or not rows else 0


def has_gpu() -> bool:
    import torch  # only a process that needs it waits for it

    return torch.cuda.is_available()


def names(only: str) -> list[str]:
    """Of the checks that a GPU would be put to."""
    import torch

    from loadtest.gpu.checks import all_checks

    return [check.name for check in all_checks(torch.device("cuda")) if only in check.name]


def run_child(device_name: str, only: str) -> NoReturn:
    # Triton reads this when it is imported, so before everything else.
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
    # Without teardown: with its device gone, a process could hang there.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
