"""What all serving benchmarks share: readers of flag values, output files, and the run of a command."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from math import inf
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import uvloop

from services.errors import Fatal

_STOPPED = 130  # a shell's exit status for SIGINT


class UsageError(Exception):
    """The command line is wrong; the message is one line."""


class Parser(argparse.ArgumentParser):
    """Accepts no abbreviated flags. Raises UsageError for a wrong command line instead of exiting."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(prog=name, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def number(kind: Callable[[str], float], low: float, high: float = inf, *, above: bool = False) -> Callable[[str], Any]:
    """Returns a reader of flag values: a `kind` of number from `low` to `high`. `above`: `low` itself is refused. The
    reader raises ArgumentTypeError for other text."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not {'a whole' if kind is int else 'a'} number") from error
        # Negated, because every comparison with NaN is false.
        if not (low <= value <= high) or (above and value == low):
            raise argparse.ArgumentTypeError(f"{text} must be {_limits(low, high, above)}")
        return value

    return read


def _limits(low: float, high: float, above: bool) -> str:
    if above:
        return f"more than {low:g}" if high == inf else f"more than {low:g} and at most {high:g}"
    return f"at least {low:g}" if high == inf else f"from {low:g} to {high:g}"


COUNT = number(int, 1)
TOKENS = number(int, 1, 2**31 - 1)


def several(read: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Returns a reader of comma-separated values, each of which `read` reads."""
    return lambda text: tuple(read(part.strip()) for part in text.split(","))


def checked_url(url: str) -> str:
    """Returns the value of --base-url without final slashes and /v1. Raises UsageError if it is not an http or https
    URL with a host."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is not a number
        valid = False
    if not valid:
        raise UsageError(f"--base-url: {url!r} is not a URL such as http://127.0.0.1:8000")
    # OpenAI's client expects /v1 in it, vLLM's benchmark does not.
    return url.rstrip("/").removesuffix("/v1")


def checked_key(given: str | None) -> str | None:
    """Returns the flag's key, else OPENAI_API_KEY, else None. Raises UsageError if the key has unprintable characters,
    which a header cannot contain."""
    key = (given or os.environ.get("OPENAI_API_KEY") or "").strip() or None
    if key is not None and not key.isprintable():
        raise UsageError("--api-key: must be one line of printable characters")
    return key


def make_folder(flag: str, path: Path) -> None:
    """Creates the folder before the run, so that no result is lost for lack of it. Raises Fatal, which names `flag`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Fatal(f"{flag} {path}: {error.strerror}") from error


def make_folder_of(flag: str, path: Path | None) -> None:
    """Creates the folder of the file `path`; None: does nothing. Raises Fatal, which names `flag`."""
    if path is not None:
        make_folder(flag, path.parent)


def write(path: Path, text: str) -> None:
    """Writes a result file and logs its path to stderr. Raises Fatal if the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Fatal(f"{path}: {error.strerror}") from error
    sys.stderr.write(f"saved in {path}\n")


def run_command(name: str, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Runs `main` until it returns, or until SIGTERM or Ctrl-C cancels it.

    Returns the exit status: that of `main`, 1 after Fatal, 2 after UsageError, 130 when cancelled. Except for that of
    `main`, a line on stderr gives the reason.
    """

    async def until_signal() -> int:
        task = asyncio.ensure_future(main())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return uvloop.run(until_signal())
    except UsageError as error:
        sys.stderr.write(f"{name}: error: {error}\n")
        return 2
    except Fatal as error:
        sys.stderr.write(f"{name}: error: {' '.join(str(error).split())}\n")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write(f"{name}: stopped before the end\n")
        return _STOPPED
