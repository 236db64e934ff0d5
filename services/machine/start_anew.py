"""Executes this program anew, in this process, with other arguments or variables: what is read only when a program
starts. It keeps its pid, interpreter, flags and descriptors. Call it before anything is read and before there are
threads."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TANDEM_STARTED_ANEW"  # the pid of a process that has done so: it does so once
_INTERPRETER = Path("/proc/self/exe")  # of this process


def start_anew(argv: list[str], kept: list[str], variables: Mapping[str, str]) -> str:
    """Executes the program that was started with the arguments `argv` with `kept` instead, and with `variables`
    added to the environment. Returns only if it cannot: why.

    Only for a program that is in a file: one that came through a pipe cannot be read again."""
    try:
        if reason := _obstacle(argv):
            return reason
        start = sys.orig_argv[: len(sys.orig_argv) - len(argv)]
        os.execve(sys.executable, [*start, *kept], {**os.environ, **variables, VARIABLE: str(os.getpid())})
    except (OSError, ValueError) as error:
        return f"the interpreter could not be executed: {error}"


def _obstacle(argv: list[str]) -> str:
    """Returns why a second start would not run the same program; empty if it would."""
    if os.environ.get(VARIABLE) == str(os.getpid()):
        return "it was started anew already"
    if sys.orig_argv[len(sys.orig_argv) - len(argv) :] != argv:
        return "its arguments are not those of its process"
    if not sys.executable or (_INTERPRETER.exists() and not _INTERPRETER.samefile(sys.executable)):
        return f"its interpreter is not {sys.executable or 'known'}"
    return ""
