"""`python -m tests.process.child MODE [ARGUMENT] --parent-death-fd=FD`: a small child process for tests."""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from services.process.child_processes import ChildProcesses
from services.process.shell import exit_with_parent

MODULE = "tests.process.child"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("exit", "run", "ignore-sigterm", "write", "write-all", "parent"))
    parser.add_argument("argument", nargs="?", default="")
    parser.add_argument("--parent-death-fd", type=int)
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
    if args.argument:  # one line for each process that runs
        with Path(args.argument).open("a", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
    threading.Event().wait()


if __name__ == "__main__":
    main()
