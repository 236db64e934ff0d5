"""Where Triton keeps the kernels that it compiles: its usual directory, or a new one where that cannot be written to.

Triton itself ends in a PermissionError there. A container whose user has no home of its own is such a place.
"""

import logging
import os
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)


def use_writable_cache() -> None:
    """Sets TRITON_CACHE_DIR if need be, before the first kernel is compiled."""
    try:
        folder = _usual_folder()
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home directory
        os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="tandem-triton-")
        log.warning("Triton's cache cannot be written to (%s): set TRITON_CACHE_DIR to keep compiled kernels", error)


def _usual_folder() -> Path:
    """As triton.knobs.cache has it."""
    given = os.environ.get("TRITON_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("TRITON_HOME") or Path.home(), ".triton", "cache")
