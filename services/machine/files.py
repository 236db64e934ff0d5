"""The folders in which Linux says what it knows of machine and processes. Another system has none of them."""

from pathlib import Path

PROC = Path("/proc")
SYS = Path("/sys")


def read(file: Path) -> str:
    """Its text; empty where it does not exist or may not be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
