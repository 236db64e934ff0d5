"""`python -m loadtest.serving.compare` as a process, with fake servers and the journal that they write."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 240.0  # a deadline for a busy machine, not an expectation
COMPARE = [sys.executable, "-m", "loadtest.serving.compare"]


class Journal:
    """The journal of the fake servers: lines of (server's name, event, details)."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal"

    def server(self, name: str, *flags: str) -> str:
        module = [sys.executable, "-m", "tests.loadtest.serving.fake_server"]
        return (
            f"--server={name}="
            + shlex.join([*module, f"--name={name}", f"--journal={self._path}", *flags, "--port"])
            + (" {port}")
        )

    def lines(self) -> list[tuple[str, str, str]]:
        if not self._path.exists():
            return []
        split = [line.split(" ", 2) for line in self._path.read_text().splitlines()]
        return [(one[0], one[1], " ".join(one[2:])) for one in split]

    def prompts(self) -> list[list[str]]:
        """Returns the hashes of the prompts that each start of a server got, sorted."""
        found: list[list[str]] = []
        for _, word, more in self.lines():
            if word == "start":
                found.append([])
            if word == "prompt":
                found[-1].append(more)
        return [sorted(prompts) for prompts in found]

    def pids(self) -> list[int]:
        return [int(pid) for _, word, more in self.lines() if word == "start" for pid in more.split()]


def compare(folder: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    command = [*COMPARE, f"--output-dir={folder / 'out'}", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def saved(folder: Path) -> dict[str, Any]:
    """Returns the contents of comparison.json."""
    found: dict[str, Any] = json.loads((folder / "out" / "comparison.json").read_text())
    return found
