"""Writes the flight recorder's recording to a file: after an error in the busy loop, or on SIGUSR1.

The file holds the token ids of prompts and answers. So nothing is recorded unless --flight-recorder-dir is given, and
only the user that runs the engine can read the file.
"""

import itertools
import logging
import os
from pathlib import Path

import msgspec

from engine_core.flight_recorder import FlightRecorder
from services.errors import Fatal

log = logging.getLogger(__name__)
OPTION = "--flight-recorder-dir"


class RecordingWriter:
    def __init__(self, folder: str | None) -> None:
        """Creates the directory `folder`; None: nothing is recorded. Raises Fatal if it cannot be made or written."""
        self.recorder = FlightRecorder() if folder is not None else None
        self._folder = Path(folder or ".").absolute()
        self._numbers = itertools.count(1)
        if folder is not None:
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise Fatal(f"{OPTION}: cannot create {self._folder}: {error.strerror}") from error
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise Fatal(f"{OPTION}: {self._folder} is not writable")

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
            path.touch(mode=0o600)
            path.write_bytes(content)
        except OSError as error:
            log.error("cannot write the recording to %s: %s", path, error.strerror)
        else:
            log.info("recording written to %s: replay it with `tandem replay`", path)
