"""Triton's directory for compiled kernels: the configured one, or a temporary one if that is not writable.

Triton itself would raise PermissionError, for example in a container without a home directory.
"""

import logging
import os
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)


def use_writable_cache() -> None:
    """Creates Triton's cache directory. If it is not writable, sets TRITON_CACHE_DIR to a new temporary one.

    Call it before the first kernel is compiled.
    """
    try:
        folder = _usual_folder()
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home directory
        os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="tandem-triton-")
        log.warning("Triton's cache is not writable (%s): set TRITON_CACHE_DIR to keep compiled kernels", error)


def _usual_folder() -> Path:
    """Returns the cache directory by TRITON_CACHE_DIR, TRITON_HOME or the home, as triton.knobs.cache computes it.

    Raises RuntimeError if it needs the home directory and there is none.
    """
    given = os.environ.get("TRITON_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("TRITON_HOME") or Path.home(), ".triton", "cache")
