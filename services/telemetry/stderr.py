"""Lines on stderr, which may be a file on a full disk or a closed pipe: what cannot be written is counted and dropped.

Nothing is raised to the code that logs, and nothing is kept for later. The next line that can be written says how many
lines are missing.
"""

import logging
import os
import sys

STDERR = 2


def write_to_stderr(text: str) -> None:
    """Writes `text` past Python's buffer, which would keep what the disk has refused. Raises OSError."""
    stream = sys.stderr
    try:
        is_own = stream.fileno() != STDERR
    except (OSError, ValueError):  # an object in its place, without a descriptor
        is_own = True
    if is_own:
        stream.write(text)
        stream.flush()
        return
    left = text.encode(stream.encoding, "backslashreplace")
    while left:
        left = left[os.write(STDERR, left) :]


class StderrHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self._lost = 0  # lines since the last one that was written
        self._why = ""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        try:
            if self._lost:
                # Behind an empty line: the disk may have taken a part of the last one.
                write_to_stderr("\n" + self.format(self._lost_lines()) + "\n")
                self._lost = 0
            write_to_stderr(line)
        except OSError as error:
            self._lost += 1
            self._why = error.strerror or type(error).__name__

    def _lost_lines(self) -> logging.LogRecord:
        message = f"{self._lost} log lines are missing here: stderr could not be written ({self._why})"
        return logging.makeLogRecord({"levelno": logging.WARNING, "levelname": "WARNING", "msg": message})
