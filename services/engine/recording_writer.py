"""Writes the flight recorder's content to a file: when the engine breaks, or somebody asks with SIGUSR1.

The file holds the token ids of prompts and answers. So nothing is recorded unless a directory is named, and what is
written is for this user only.
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
        """Raises Fatal when the directory cannot be written to."""
        self.recorder = FlightRecorder() if folder is not None else None
        self._folder = Path(folder or ".").absolute()
        self._numbers = itertools.count(1)
        if folder is not None:
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise Fatal(f"{OPTION}: {self._folder} cannot be made: {error.strerror}") from error
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise Fatal(f"{OPTION}: {self._folder} cannot be written to")

    def asked(self) -> None:
        if self.recorder is None:
            log.warning("nothing is recorded: see %s", OPTION)
        else:
            self._write(self.recorder)

    def broken(self) -> None:
        """Never raises: whoever calls has worse to tell."""
        if self.recorder is not None:
            self._write(self.recorder)

    def _write(self, recorder: FlightRecorder) -> None:
        path = self._folder / f"engine-{os.getpid()}-{next(self._numbers)}.flight"
        try:
            content = msgspec.msgpack.encode(recorder.recording())
            path.touch(mode=0o600)
            path.write_bytes(content)
        except OSError as error:
            log.error("%s cannot be written: %s", path, error.strerror)
        else:
            log.info("flight recorder written to %s: `tandem replay` goes through it again", path)
