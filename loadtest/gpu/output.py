"""Where a check writes a trace or a table: a file of the call's --out folder.

Without --out the files go to a temporary folder, which stays.
"""

import functools
import tempfile
from pathlib import Path

_folder: Path | None = None


def set_folder(path: Path | None) -> None:
    """Sets the folder of all later files. None: a new temporary one. Creates it if it is missing."""
    global _folder
    _folder = path
    _temporary.cache_clear()
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)


def file(name: str) -> Path:
    """Returns the path of the file `name`, which has no folders. The file may exist; the caller writes it."""
    assert Path(name).name == name, f"not a plain file name: {name!r}"
    return (_folder or _temporary()) / name


@functools.cache
def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="tandem-gpu-"))
