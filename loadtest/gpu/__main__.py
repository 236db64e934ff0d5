"""`python -m loadtest.gpu` in the repository's root: all checks that need a GPU, or those of one call, as one table.

The exit status is 1 when a check fails, or when `--only` selects none. Without a GPU every row says "not run" and the
status is 0. `--device cpu` runs a small part through Triton's interpreter, to test these scripts. docs/gpu.md says how
to read the table.

Checks run in child processes: after an illegal memory access a process can no longer use the device. Such a check
fails, and a new process runs the next one. After `--seconds`, unfinished checks are "not run", which is no failure; if
no process has listed its checks by then, the run fails.

With `--out DIR`, DIR has rows.jsonl (report.py), log.txt (what the checks print), the archive files.tar.gz (their
traces and tables) and Triton's cache, which a later call takes with `--cache`. The terminal shows the table only.
"""

import argparse
import contextlib
import os
import shutil
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NoReturn

from loadtest.gpu import output, packing
from loadtest.gpu.child import serve
from loadtest.gpu.children import Children
from loadtest.gpu.report import Report
from loadtest.gpu.table import CALL_SECONDS, HEADER, Row
from services.machine.available import available_cores
from tests.interpreter import interpret

SPARED_CORES = 2  # for the parent, and for the processes that serving checks start
CHILD = (sys.executable, "-m", "loadtest.gpu")
LOG, FILES, CACHE = "log.txt", "files", "triton-cache.tar.gz"


def main(argv: Sequence[str] | None = None, child: Sequence[str] = CHILD) -> int:
    """Prints the table of the checks that `argv` selects. Returns the exit status; exits with 2 for a wrong command
    line.

    `child` is the command of a child process, to which this function appends --child and the options. With --child it
    runs as that process and does not return.
    """
    began = time.monotonic()
    args = parse(argv)
    if args.child:
        run_child(args)
    print(HEADER, flush=True)
    if args.device == "cuda" and not has_gpu():
        for name in names(args.call, args.only):
            print(Row(name, "not run", "no GPU"))
        print("torch finds no GPU: nothing was checked")
        return 0
    seconds = args.seconds if args.seconds is not None else CALL_SECONDS[args.call]
    report = Report(args.call, args.out)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        options = ["--child", "--device", args.device, "--call", args.call]
        options += [word for text in args.only for word in ("--only", text)]
        log: IO[str] | None = None
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(args.out / FILES, ignore_errors=True)
            log = stack.enter_context((args.out / LOG).open("w"))
            options += ["--out", str(args.out / FILES)]
        unpacked = [unpack(archive) for archive in args.cache]
        if args.out is not None:
            packing.cache_folder()
        Children([*child, *options], scratch, args.processes, began + seconds, report, log).run()
    rows = [*report.finish()]
    for row in [*unpacked, *(pack(args.out) if args.out is not None else [])]:
        report.add(row)
    results = [row.result for row in rows]
    failed, not_run = results.count("FAIL"), results.count("not run")
    closing = f"{len(rows)} checks, {failed} failed" if rows else f"no check has {' or '.join(args.only)!r} in its name"
    if not_run:
        closing += f", {not_run} not run"
    print(closing)
    return 1 if failed or not rows else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu", description="Checks that need a GPU, as one table.")
    parser.add_argument(
        "--call", choices=tuple(CALL_SECONDS), default="all", help="which checks (default: %(default)s)"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a small part, through Triton's interpreter"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        metavar="TEXT",
        help="of them, those with a TEXT in their name",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for rows, log, traces and Triton's cache")
    parser.add_argument(
        "--cache", type=Path, nargs="+", default=[], metavar="FILE", help=f"{CACHE} of earlier calls, to start with"
    )
    parser.add_argument("--seconds", type=float, help="time limit of the whole run (default: that of the call)")
    parser.add_argument(
        "--processes",
        type=int,
        default=num_processes(available_cores()),
        help="child processes (default: %(default)s)",
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def num_processes(cores: int) -> int:
    """Returns how many processes compile on a machine with so many cores."""
    return max(1, cores - SPARED_CORES)


def unpack(archive: Path) -> Row:
    """Fills Triton's cache from the archive of an earlier call. Returns a row: a note if there is none that fits."""
    name = f"{packing.EARLIER_ROW}: {archive}"
    try:
        return Row(name, "ok", packing.unpack_cache(archive, packing.cache_folder()))
    except (OSError, EOFError, ValueError, KeyError, tarfile.TarError, zlib.error) as error:
        return Row(name, "note", f"not used, all kernels are compiled: {error}")


def pack(out: Path) -> list[Row]:
    """Packs Triton's cache, and the files that checks wrote, into archives in `out`. Returns a row for each."""
    rows = [pack_one(packing.CACHE_ROW, packing.cache_folder(), out / CACHE)]
    files = out / FILES
    rows.append(pack_one(packing.FILES_ROW, files, out / f"{FILES}.tar.gz"))
    if rows[-1].result == "ok":
        shutil.rmtree(files, ignore_errors=True)
    return rows


def pack_one(name: str, folder: Path, archive: Path) -> Row:
    wanted = packing.is_loaded if archive.name == CACHE else lambda path: True
    count, size = packing.pack(folder, archive, wanted)
    if not archive.exists() and count:
        return Row(
            name, "note", f"{count} files take {size >> 20} MiB, {packing.MAX_BYTES >> 20} are allowed: not packed"
        )
    return Row(name, "ok", f"{count} files, {size / 2**20:.1f} MiB")


def has_gpu() -> bool:
    import torch  # slow to import: only where it is needed

    return torch.cuda.is_available()


def names(call: str, only: list[str]) -> list[str]:
    """Returns the names of the checks of a call that a GPU would run and that have one of `only` in their name."""
    import torch

    from loadtest.gpu.calls import checks_of

    return [check.name for check in checks_of(call, torch.device("cuda"), only)]


def run_child(args: argparse.Namespace) -> NoReturn:
    """Runs in a child: runs the checks that the parent asks for on stdin, among those of the call and of --only.

    When stdin closes or the device is lost, ends the process with status 0.
    """
    # Triton reads the variable when it is imported.
    if args.device == "cpu":
        interpret()
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    import torch

    from loadtest.gpu.calls import checks_of
    from loadtest.gpu.machine import about

    device = torch.device(args.device)
    output.set_folder(args.out)

    def works() -> bool:
        try:
            torch.zeros(1, device=device).add_(1).item()
        except RuntimeError:
            return False
        return True

    serve(checks_of(args.call, device, args.only), works, about=about(device))
    # Skips interpreter shutdown, in which a process without its device can hang.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
