"""Where a check may write a table or trace: the folder of `--out`, or a temporary one."""

import tempfile
from pathlib import Path

_folder: Path | None = None


def set_folder(path: Path | None) -> None:
    """Sets the folder of `file`; None: a temporary one."""
    global _folder
    _folder = path


def file(name: str) -> Path:
    """Returns the path of the file `name`, without folders, in the folder, which exists then."""
    global _folder
    if _folder is None:
        _folder = Path(tempfile.mkdtemp())
    _folder.mkdir(parents=True, exist_ok=True)
    return _folder / name
