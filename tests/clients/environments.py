"""Makes the environment of a client under build/clients, once for each set of pins.

An environment's folder has a key in its name, the hash of everything that was installed from: changed pins make a new
folder, and the old one is removed. Imports only the standard library.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.clients.catalogue import PROGRAMS, Client, CommandClient, NpmClient, PipClient

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "clients"
TORCH = "torch==2.13.0"


class NotInstalled(Exception):
    """An environment cannot be made. The text is the last line of the installer."""


@dataclass(frozen=True)
class Environment:
    """`version` is the client's; `command` runs its program, less the program's arguments."""

    version: str
    command: tuple[str, ...]


def environment(client: Client) -> Environment | None:
    """Returns the environment of a client, made if it is not there; None for a command that is not on the PATH.

    Raises NotInstalled."""
    match client:
        case PipClient():
            python = _installed(client) / "bin" / "python"
            return Environment(client.version, (str(python), str(PROGRAMS / client.program)))
        case NpmClient():
            folder = _installed(client)
            # Node looks for a module's packages beside the file of the module.
            for program in PROGRAMS.glob("*.mjs"):
                shutil.copy(program, folder)
            return Environment(client.version, ("node", str(folder / client.program)))
        case CommandClient():
            found = shutil.which(client.command)
            if found is None:
                return None
            lines = run(found, "--version").split()
            return Environment(lines[-1], (sys.executable, str(PROGRAMS / client.program)))


def key(client: PipClient | NpmClient) -> str:
    """Returns the hash of the interpreter, the requirements and the pins of a client: 12 hexadecimal digits."""
    requirements = client.requirements if isinstance(client, PipClient) else ()
    digest = hashlib.sha256(repr((sys.version_info[:2], requirements)).encode())
    for file in client.pin_files:
        digest.update(file.read_bytes() if file.exists() else b"")
    return digest.hexdigest()[:12]


def _installed(client: PipClient | NpmClient) -> Path:
    """Returns the folder of the client's environment, made if it is not there."""
    folder = CACHE / f"{client.name}-{key(client)}"
    mark = folder / "installed"
    if not mark.exists():
        for old in CACHE.glob(f"{client.name}-*"):
            if re.fullmatch(rf"{re.escape(client.name)}-[0-9a-f]{{12}}", old.name):
                shutil.rmtree(old)
        folder.mkdir(parents=True)
        if isinstance(client, PipClient):
            pip_install(client, folder)
        else:
            npm_install(client, folder)
        mark.touch()
    return folder


def pip_install(client: PipClient, folder: Path) -> None:
    """Makes a virtual environment in `folder` with what the client requires, within its pins if there are any."""
    run(sys.executable, "-m", "venv", str(folder))
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if client.torch:
        # Without dependencies, because an index of torch has few versions of them.
        index = os.environ.get("TORCH_INDEX")
        run(*pip, "--no-deps", os.environ.get("TORCH") or TORCH, *(("--index-url", index) if index else ()))
    limits = ("--constraint", str(client.pins)) if client.pins.exists() else ()
    run(*pip, *limits, *client.requirements)


def npm_install(client: NpmClient, folder: Path) -> None:
    """Installs exactly the packages of package-lock.json into `folder`."""
    for file in client.pin_files:
        shutil.copy(file, folder)
    run("npm", "ci", "--no-audit", "--no-fund", cwd=folder)


def run(*command: str, cwd: Path = ROOT) -> str:
    """Returns what a command writes to stdout. Raises NotInstalled with its last line on stderr if it fails."""
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        lines = [line for line in ended.stderr.splitlines() if line.strip()] or [f"exit status {ended.returncode}"]
        raise NotInstalled(f"{' '.join(command)}: {lines[-1]}")
    return ended.stdout
