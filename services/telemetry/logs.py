"""Logs: one line per event on stderr, as text or as one JSON object. Prompts and answers are never logged.

A record's own fields (`log.info("request finished", extra=fields(request_id=...))`) follow the message as name=value,
or are members of the JSON object.
"""

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from services.telemetry.stderr import StderrHandler, write_to_stderr

RATE_LIMIT_SECONDS = 1.0
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOISY = ("httpx", "httpx2", "httpcore", "httpcore2", "huggingface_hub", "uvicorn.error", "uvicorn.access", "asyncio")


def fields(**values: Any) -> dict[str, Any]:
    """Returns the value of `extra=` that gives a record these fields, in this order."""
    return {"fields": values}


def set_up_logging(role: str, level: str, style: str) -> None:
    """Sets the format ("text" or "json") and level of this process's log lines on stderr; each names the role.

    Libraries in _NOISY never log below WARNING.
    """
    handler = StderrHandler()
    handler.setFormatter(_JsonFormatter(role) if style == "json" else _TextFormatter(role))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


class RateLimitedLog:
    """Writes at most one line per RATE_LIMIT_SECONDS to `log`, for events that a peer can cause often. Thread-safe.

    The next line after suppressed ones says how many there were.
    """

    def __init__(self, log: logging.Logger, level: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._level = level
        self._clock = clock
        self._lock = threading.Lock()
        self._next = 0.0  # clock time before which no line is written
        self._suppressed = 0

    def log(self, message: str, *args: Any) -> None:
        with self._lock:
            now = self._clock()
            if now < self._next:
                self._suppressed += 1
                return
            suppressed, self._suppressed, self._next = self._suppressed, 0, now + RATE_LIMIT_SECONDS
        if suppressed:
            message, args = message + " (and %d more like it)", (*args, suppressed)
        self._log.log(self._level, message, *args)


def fail(role: str, error: BaseException) -> int:
    """Writes in one line why this process exits: "tandem ROLE: error: ..." on stderr, or a JSON log line.

    Returns the exit status, 1.
    """
    message = " ".join(str(error).split())
    if any(isinstance(handler.formatter, _JsonFormatter) for handler in logging.getLogger().handlers):
        logging.getLogger(__name__).error("%s", message)
    else:
        with contextlib.suppress(OSError):
            write_to_stderr(f"tandem {role}: error: {message}\n")
    return 1


def _quoted(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or " " in text or '"' in text else text


class _TextFormatter(logging.Formatter):
    def __init__(self, role: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s [{role}] %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        found = getattr(record, "fields", {})
        line = " ".join([super().formatMessage(record), *(f"{name}={_quoted(value)}" for name, value in found.items())])
        # A value from a client must not start a new line or send control sequences to a terminal.
        return _UNPRINTABLE.sub(lambda found: ascii(found.group())[1:-1], line)


class _JsonFormatter(logging.Formatter):
    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "role": self._role,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)
