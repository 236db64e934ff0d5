"""The directories /proc and /sys, in which Linux describes machine and processes. Other systems have neither."""

from pathlib import Path

PROC = Path("/proc")
SYS = Path("/sys")


def read(file: Path) -> str:
    """Returns the text of a file; empty if it does not exist or cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
