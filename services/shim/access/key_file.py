"""The keys of --api-key, --admin-api-key and --api-key-file, and how the file is read again.

A line of the file: `name, group, SHA-256 of the key in hexadecimal`. The group may be empty. `#` begins a comment.
"""

import asyncio
import logging
import re
from collections.abc import Iterable
from pathlib import Path

from services.errors import Fatal
from services.options.declarations import ShimOptions
from services.shim.access.keys import DEFAULT_GROUP, Caller, Key, Keys, digest_of

log = logging.getLogger(__name__)
_WORD = re.compile(r"[\w.@+-]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


class KeyFileError(Exception):
    """The key file cannot be used. The message is one line with the file and the number of the line at fault."""


def open_keys(options: ShimOptions) -> Keys | None:
    """Returns the keys of the options; None without any option for keys, which leaves the server open.

    Raises Fatal if the key file cannot be used.
    """
    if not is_keyed(options):
        return None
    try:
        return Keys(all_keys(options))
    except KeyFileError as error:
        raise Fatal(str(error)) from error


def is_keyed(options: ShimOptions) -> bool:
    """Returns whether the server asks for a key. It does so with a key file that holds no key, too."""
    return bool(options.api_key or options.admin_api_key or options.api_key_file)


def all_keys(options: ShimOptions) -> list[Key]:
    """Returns the keys of the three options. Reads the key file.

    Raises KeyFileError for a file that cannot be read, a wrong line, or a key that is in two places.
    """
    given = [Key(digest_of(key), Caller()) for key in dict.fromkeys(options.api_key or ())]
    if options.admin_api_key is not None:
        given.append(Key(digest_of(options.admin_api_key), Caller("admin", is_admin=True)))
    if len({key.digest for key in given}) < len(given):
        raise KeyFileError("--admin-api-key must differ from --api-key")
    if options.api_key_file is None:
        return given
    found = _read(options.api_key_file, given)
    if not found:
        log.warning("--api-key-file: %s holds no key", options.api_key_file)
    return [*given, *found]


class KeyReload:
    """Called at SIGHUP: reads the key file again and exchanges the keys. Requests that run are not affected.

    After an error the old keys stay, and one line says why.
    """

    def __init__(self, keys: Keys | None, options: ShimOptions) -> None:
        self._keys = keys
        self._options = options
        self._lock = asyncio.Lock()  # the last read must win
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self) -> None:
        if self._keys is None or self._options.api_key_file is None:
            log.info("SIGHUP has no effect: there is no --api-key-file to read again")
            return
        task = asyncio.create_task(self._reload(self._keys))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self, keys: Keys) -> None:
        async with self._lock:
            try:
                found = await asyncio.to_thread(all_keys, self._options)
            except KeyFileError as error:
                log.error("%s; the keys stay as they were", error)
                return
            keys.replace(found)
        log.info("read %s again: %d keys are valid", self._options.api_key_file, len(found))


def _read(path: str, given: Iterable[Key]) -> list[Key]:
    """Returns the keys of the file. `given`: keys that it must not repeat. Raises KeyFileError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not in UTF-8"
        raise KeyFileError(f"--api-key-file: {path} cannot be read: {reason}") from error
    found: list[Key] = []
    names = {"admin"}
    digests = {key.digest for key in given} | {digest_of(b"")}
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        try:
            key = parse_line(content)
        except ValueError as error:
            raise KeyFileError(f"--api-key-file: {path}, line {number}: {error}") from error
        if key.caller.name in names or key.digest in digests:
            what = "name" if key.caller.name in names else "key"
            raise KeyFileError(f"--api-key-file: {path}, line {number}: this {what} is taken already")
        names.add(key.caller.name)
        digests.add(key.digest)
        found.append(key)
    return found


def parse_line(content: str) -> Key:
    """Returns the key of a line `name, group, digest`. Raises ValueError, without the line's text: it may be a key."""
    parts = [part.strip() for part in content.split(",")]
    if len(parts) != 3:
        raise ValueError(f"it has {len(parts)} fields separated by commas, but must have 3: name, group, SHA-256")
    name, group, digest = parts
    if not _WORD.fullmatch(name):
        raise ValueError("the name must be 1 to 64 letters, digits or . @ + - _")
    if group != DEFAULT_GROUP and not _WORD.fullmatch(group):
        raise ValueError("the group must be empty, or 1 to 64 letters, digits or . @ + - _")
    if not _DIGEST.fullmatch(digest):
        raise ValueError("the third field must be the SHA-256 of the key: 64 hexadecimal digits")
    return Key(bytes.fromhex(digest), Caller(name, group))
