"""What all commands of the load test share: how a flag's value is read, and how a command begins and ends."""

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

_STOPPED = 130  # what a shell reports for a command that Ctrl-C ended


class UsageError(Exception):
    """The command line is wrong; the message is one line."""


class Parser(argparse.ArgumentParser):
    """Knows each flag by its whole name only. Raises UsageError."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(prog=name, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def number(kind: Callable[[str], float], low: float, high: float = inf, *, above: bool = False) -> Callable[[str], Any]:
    """A reader of one flag's value. `above`: `low` itself is too low."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not {'a whole' if kind is int else 'a'} number") from error
        # Asked this way round, for no comparison with NaN is true.
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
    """A reader of values with commas between them."""
    return lambda text: tuple(read(part.strip()) for part in text.split(","))


def checked_url(url: str) -> str:
    """Without a slash at its end, or /v1. Raises UsageError for what is no URL of a server."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        known = False
    if not known:
        raise UsageError(f"--base-url: {url!r} is not a URL such as http://127.0.0.1:8000")
    # OpenAI's own client takes it with /v1, vLLM's benchmark without.
    return url.rstrip("/").removesuffix("/v1")


def checked_key(given: str | None) -> str | None:
    """The key of the flag, or of the environment. Raises UsageError for what no header can hold."""
    key = (given or os.environ.get("OPENAI_API_KEY") or "").strip() or None
    if key is not None and not key.isprintable():
        raise UsageError("--api-key: must be one line of printable characters")
    return key


def make_folder(flag: str, path: Path) -> None:
    """Before the run: after it, what cannot be written is lost. Raises Fatal."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Fatal(f"{flag} {path}: {error.strerror}") from error


def make_folder_of(flag: str, path: Path | None) -> None:
    """Of the file that will be written; None: none will."""
    if path is not None:
        make_folder(flag, path.parent)


def write(path: Path, text: str) -> None:
    """Raises Fatal."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Fatal(f"{path}: {error.strerror}") from error
    sys.stderr.write(f"saved in {path}\n")


def run_command(name: str, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Runs `main` to its end, or until SIGTERM or Ctrl-C cancels it.

    Returns the exit status: its own, 1 when it cannot go on, 2 for a wrong command line.
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
