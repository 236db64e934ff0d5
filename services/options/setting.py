"""What a setting is: default, range, one line of help, and the parsers that turn its text into a value."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAX_PORT = 65535
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")


class UsageError(Exception):
    """The command line, an environment variable or a configuration file is wrong. The message is one line."""


def integer(text: str) -> int:
    """Parses 7, and 1k, 2.5K, 4M, 8G: lower-case units are powers of 1000, upper-case units powers of 1024.

    Raises ValueError, or OverflowError for infinity.
    """
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    return int(float(text[:-1]) * units[text[-1]]) if text[-1:] in units else int(text)


def boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text == "true"


def json_object(text: str) -> dict[str, Any]:
    value = any_json(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def any_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def text_list(text: str) -> tuple[str, ...]:
    """Parses a JSON list of strings, as vLLM's lists on a command line: '["a", "b"]'."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise ValueError('not a JSON list of strings that are not empty, as ["a", "b"]')
    return tuple(value)


def origins(text: str) -> tuple[str, ...]:
    """Parses a JSON list of web origins, each SCHEME://HOST or SCHEME://HOST:PORT as browsers send it, or "*"."""
    found = text_list(text)
    for one in found:
        if one not in ("*", "null") and not _ORIGIN.fullmatch(one):
            raise ValueError(f"{one!r} is not an origin: write SCHEME://HOST or SCHEME://HOST:PORT in lower case")
    return found


def split_address(text: str) -> tuple[str, int]:
    """Returns host, without brackets, and port of host:port. Raises ValueError if `text` is not that."""
    host, _, port = text.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("an IPv6 address needs brackets, as in [::1]:8000")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise ValueError(f"not host:port with a port from 0 to {MAX_PORT}")
    return host, int(port)


def host_and_port(text: str) -> str:
    """Returns `text` unchanged. Raises ValueError if it is not host:port."""
    split_address(text)
    return text


def named_addresses(text: str) -> tuple[str, ...]:
    """Returns the parts of a comma-separated list of NAME=host:port. Raises ValueError if a part is not that."""
    parts = addresses(text)
    for part in parts:
        name, _, address = part.partition("=")
        if not name or not address:
            raise ValueError(f"{part!r} is not NAME=host:port")
        split_address(address)
    return parts


def addresses(text: str) -> tuple[str, ...]:
    """Returns the parts of a comma-separated list, without empty ones."""
    return tuple(part for part in text.split(",") if part)


@dataclass(frozen=True)
class Setting:
    """One declared setting. Its name and its default are those of the dataclass field that holds it."""

    help: str
    unset: str = ""  # what a default of None means
    parse: Callable[[str], Any] = str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    positional: bool = False
    many: bool = False  # takes one or more values
    repeated: bool = False  # may be given several times, with one value each; one per line in the environment
    required: bool = False
    internal: bool = False  # about the connections between processes: `tandem serve` sets it itself
    env: tuple[str, ...] = ()  # environment variables, read if no flag is given; the first one wins
    in_environment_only: bool = False  # a secret: command lines and configuration files are readable by others
    # Moves from the command line into the environment at the start (hide_secrets.py). Other roles do not get it.
    secret: bool = False

    def convert(self, name: str, text: str) -> Any:
        """Returns the parsed and checked value of `text`. Raises UsageError with `name`, the text and the limit."""
        if self.secret and not text.isprintable():
            raise UsageError(f"{name}: must be one line of printable characters")
        try:
            value = self.parse(text)
        except (ValueError, OverflowError) as error:
            raise UsageError(f"{name}: {text!r} is not valid: {error}") from error
        if self.choices and value not in self.choices:
            raise UsageError(f"{name}: {text!r} is not one of {', '.join(self.choices)}")
        if value == "":
            raise UsageError(f"{name}: must not be empty")
        # Negated, so that NaN is refused: every comparison with NaN is false.
        if not ((self.low is None or value >= self.low) and (self.high is None or value <= self.high)):
            raise UsageError(f"{name}: {text} must be {self.range_text()}")
        return value

    def range_text(self) -> str:
        """Returns "at least LOW" or "from LOW to HIGH"; empty without a lower limit."""
        if self.low is None:
            return ""
        return f"at least {self.low:g}" if self.high is None else f"from {self.low:g} to {self.high:g}"


def setting(default: Any, help: str, **kwargs: Any) -> Any:
    """Returns a dataclass field with this default; its metadata["setting"] is a Setting of the other arguments."""
    return field(default=default, metadata={"setting": Setting(help, **kwargs)})
