"""`make gpu-check`, or `python -m tests.gpu` in the repository's root: all that needs a GPU, as one table.

Returns 1 when a check fails. Where there is no GPU, every row says so, and it returns 0. `--device cpu` runs a small
part through Triton's interpreter, which proves these scripts. Needs torch, triton, numpy, msgspec, safetensors and
transformers; tandem itself need not be installed.

The checks run in a process of their own. A wrong kernel can take the device away from its process for good: then that
check fails, and a new process goes on with the next.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tests.gpu import table
from tests.gpu.table import Row

DEVICE_GONE = 77  # exit status of a child whose device answers nothing more
CHILD = (sys.executable, "-m", "tests.gpu")


def main(argv: Sequence[str] | None = None, child: Sequence[str] = CHILD) -> int:
    """`child` is the command that runs the checks, to which its arguments are appended."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="Checks that need a GPU, as one table.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a small part, interpreted")
    parser.add_argument("--only", default="", metavar="TEXT", help="the checks whose name contains TEXT")
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)  # in a child: the check to begin with
    args = parser.parse_args(argv)
    if args.first is not None:
        return run_child(args.device, args.only, args.first)
    print(table.HEADER, flush=True)
    if args.device == "cuda" and not has_gpu():
        for name in names(args.only):
            print(Row(name, "not run", ""))
        print("no GPU here that torch can use: nothing was checked")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        rows = run_children([*child, "--device", args.device, "--only", args.only], scratch)
    failed = sum(row.result == "FAIL" for row in rows)
    print(f"{len(rows)} checks, {failed} failed" if rows else "no check has such a name")
    return 1 if failed or not rows else 0


def has_gpu() -> bool:
    import torch  # only a process that needs it waits for it

    return torch.cuda.is_available()


def names(only: str) -> list[str]:
    """Of the checks that a GPU would be put to."""
    import torch

    from tests.gpu.checks import all_checks

    return [check.name for check in all_checks(torch.device("cuda")) if only in check.name]


def run_children(command: list[str], scratch: str) -> list[Row]:
    """Prints each row as it comes. A child that dies leaves a failed row, and a next one goes on behind it."""
    rows: list[Row] = []
    environment = {**os.environ, "TMPDIR": scratch}
    while True:
        running, count = "", len(rows)
        child = [*command, "--first", str(count)]
        with subprocess.Popen(child, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith(table.MARK):
                    sys.stderr.write(line)
                    continue
                message = json.loads(line[1:])
                running = message.get("begin", "")
                if "row" in message:
                    _take(rows, Row(**message["row"]))
        if process.returncode == 0:
            return rows
        if process.returncode != DEVICE_GONE:
            what = f"the process ended with status {process.returncode} and no answer"
            _take(rows, Row(running or "start", "FAIL", what))
            if not running:
                return rows
        elif len(rows) == count:
            return rows


def _take(rows: list[Row], row: Row) -> None:
    rows.append(row)
    print(row, flush=True)


def run_child(device_name: str, only: str, first: int) -> int:
    # Triton reads this when it is imported, so before everything else.
    if device_name == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    import torch

    from tests.gpu.checks import all_checks

    device = torch.device(device_name)

    def works() -> bool:
        try:
            torch.zeros(1, device=device).add_(1).item()
        except RuntimeError:
            return False
        return True

    checks = [check for check in all_checks(device) if only in check.name]
    finished = table.run_all(checks, first, works)
    sys.stdout.flush()
    # Without teardown: with its device gone, a process could hang there.
    os._exit(0 if finished else DEVICE_GONE)


if __name__ == "__main__":
    sys.exit(main())
