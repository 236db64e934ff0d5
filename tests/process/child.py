"""`python -m tests.process.child MODE [ARGUMENT] --parent-death-fd=FD`: a small child process for tests."""

import argparse
import asyncio
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from services.options.common import ListenOptions
from services.process.child_processes import ChildProcesses
from services.process.progress_page import BEAT_SECONDS, Progress
from services.process.shell import exit_with_parent
from services.process.spare import take_over, take_over_in_thread

MODULE = "tests.process.child"
MODES = (
    *("exit", "run", "work", "beat", "beat-once", "ignore-sigterm", "write", "write-all", "parent"),
    *("spare", "spare-thread"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("argument", nargs="?", default="")
    parser.add_argument("--parent-death-fd", type=int)
    parser.add_argument("--progress-fd", type=int)
    parser.add_argument("--spare-fd", type=int)
    args = parser.parse_args()
    if args.parent_death_fd is not None:
        exit_with_parent(args.parent_death_fd)
    match args.mode:
        case "exit":
            sys.exit(int(args.argument))
        case "ignore-sigterm":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "write":  # a variable of the environment, to an inherited file descriptor
            os.write(int(args.argument), os.environ["CHILD_VALUE"].encode())
            return
        case "write-all":  # every variable
            os.write(int(args.argument), "\n".join(f"{name}={value}" for name, value in os.environ.items()).encode())
            return
        case "parent":  # of one child, which writes its pid to the file
            with ChildProcesses() as children:
                children.start_module("child", [MODULE, "run", args.argument], {}, [])
                threading.Event().wait()
    progress = Progress(args.progress_fd)
    if args.mode == "spare":
        asyncio.run(be_spare(ListenOptions(spare_fd=args.spare_fd), progress, Path(args.argument)))
    if args.mode == "spare-thread":
        tell(take_over_in_thread(ListenOptions(spare_fd=args.spare_fd), progress), Path(args.argument))
        while not threading.Event().wait(BEAT_SECONDS):
            progress.thread.beat()
    if args.mode in ("beat", "beat-once"):
        progress.event_loop.beat()
    if args.mode == "work":
        progress.worked()
    if args.argument:  # one line for each process that runs
        with Path(args.argument).open("a", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
    while not threading.Event().wait(BEAT_SECONDS if args.mode == "beat" else None):
        progress.event_loop.beat()


async def be_spare(options: ListenOptions, progress: Progress, file: Path) -> None:
    """Loads nothing; writes the place that it takes: its address, and the port of its metrics server."""
    progress.beat_in_event_loop()
    tell(await take_over(options), file)
    await asyncio.Event().wait()


def tell(place: ListenOptions, file: Path) -> None:
    assert place.metrics_fd is not None
    with socket.socket(fileno=place.metrics_fd) as metrics:
        text = f"{place.listen} {metrics.getsockname()[1]}"
    file.write_text(text)


if __name__ == "__main__":
    main()
