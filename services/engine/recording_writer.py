"""Writes the flight recorder's recording to a file: after an error in the busy loop, or on SIGUSR1.

The file holds the token ids of prompts and answers. So nothing is recorded unless --flight-recorder-dir is given, and
only the user that runs the engine can read the file.
"""

import contextlib
import itertools
import logging
import os
from pathlib import Path

import msgspec

from engine_core.flight_recorder import FlightRecorder
from services.errors import Fatal
from services.machine.disk import check_writable, is_disk_error

log = logging.getLogger(__name__)
OPTION = "--flight-recorder-dir"


class RecordingWriter:
    def __init__(self, folder: str | None) -> None:
        """Creates the directory `folder`; None: nothing is recorded.

        Raises Fatal if it cannot be made or written. A full or read-only disk is only logged: the engine must come back
        after a restart, and the disk may be writable by the time of a recording.
        """
        self.recorder = FlightRecorder() if folder is not None else None
        self._folder = Path(folder or ".").absolute()
        self._numbers = itertools.count(1)
        if folder is not None:
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                check_writable(self._folder)
            except OSError as error:
                message = f"{OPTION}: {self._folder} cannot be written: {error.strerror}"
                if not is_disk_error(error):
                    raise Fatal(message) from error
                log.warning("%s; the engine runs without recordings until it can", message)

    def write_on_request(self) -> None:
        """Writes the recording to engine-PID-N.flight, N from 1.

        Logs a warning if nothing is recorded. A file error is only logged.
        """
        if self.recorder is None:
            log.warning("nothing is recorded: see %s", OPTION)
        else:
            self._write(self.recorder)

    def write_on_failure(self) -> None:
        """Writes the recording, if there is one. A file error is only logged: the caller reports its own error."""
        if self.recorder is not None:
            self._write(self.recorder)

    def _write(self, recorder: FlightRecorder) -> None:
        path = self._folder / f"engine-{os.getpid()}-{next(self._numbers)}.flight"
        try:
            content = msgspec.msgpack.encode(recorder.recording())
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_bytes(content)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink()  # a part of a recording takes room, and cannot be replayed
            log.error("cannot write the recording to %s: %s", path, error.strerror)
        else:
            log.info("recording written to %s: replay it with `tandem replay`", path)
