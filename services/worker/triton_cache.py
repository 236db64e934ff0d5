"""Triton's directory for compiled kernels: the configured one, or a temporary one if that is not writable.

Triton itself would raise PermissionError, for example in a container without a home directory.
"""

import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from services.machine import files
from services.machine.disk import check_writable
from services.worker.errors import ModelError

log = logging.getLogger(__name__)


def use_writable_cache() -> None:
    """Creates Triton's cache directory. If it is not writable, sets TRITON_CACHE_DIR to a new temporary one.

    Raises ModelError if there is none. Call it before the first kernel is compiled.
    """
    try:
        folder = _usual_folder()
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home directory
        os.environ["TRITON_CACHE_DIR"] = _new_folder()
        log.warning("Triton's cache is not writable (%s): set TRITON_CACHE_DIR to keep compiled kernels", error)


def _new_folder() -> str:
    """Returns a new temporary directory; one in memory if the disk cannot be written. Raises ModelError."""
    for parent in (None, files.SHARED_MEMORY):
        with suppress(OSError):
            folder = tempfile.mkdtemp(prefix="tandem-triton-", dir=parent)
            check_writable(Path(folder))
            return folder
    raise ModelError("no directory for Triton's compiled kernels can be written: set TRITON_CACHE_DIR to one")


def _usual_folder() -> Path:
    """Returns the cache directory by TRITON_CACHE_DIR, TRITON_HOME or the home, as triton.knobs.cache computes it.

    Raises RuntimeError if it needs the home directory and there is none.
    """
    given = os.environ.get("TRITON_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("TRITON_HOME") or Path.home(), ".triton", "cache")
