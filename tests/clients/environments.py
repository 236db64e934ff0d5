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
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.clients.catalogue import PROGRAMS, Client, CommandClient, NpmClient, PipClient, WheelClient

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "clients"
TORCH = "torch==2.13.0"
PACKAGES = ("services", "engine_core", "kernels", "demo", "loadtest")


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
            for program in PROGRAMS.iterdir():
                if program.is_file():
                    shutil.copy(program, folder)
            runtime = sys.executable if client.program.endswith(".py") else "node"
            return Environment(client.version, (runtime, str(folder / client.program)))
        case WheelClient():
            python = _installed(client) / "bin" / "python"
            code = f"import importlib.metadata as m; print(m.version({client.package!r}))"
            return Environment(run(str(python), "-c", code).strip(), (str(python), str(PROGRAMS / client.program)))
        case CommandClient():
            found = shutil.which(client.command)
            if found is None:
                return None
            lines = run(found, "--version").split()
            return Environment(lines[-1], (sys.executable, str(PROGRAMS / client.program)))


def key(client: PipClient | NpmClient | WheelClient) -> str:
    """Returns the hash of the interpreter, the requirements and the pins of a client, or of the files of tandem's
    package: 12 hexadecimal digits."""
    requirements = client.requirements if isinstance(client, PipClient) else ()
    digest = hashlib.sha256(repr((sys.version_info[:2], requirements)).encode())
    for file in package_files() if isinstance(client, WheelClient) else client.pin_files:
        digest.update(file.read_bytes() if file.exists() else b"")
    return digest.hexdigest()[:12]


def package_files() -> list[Path]:
    """Returns the files that tandem's package is built from."""
    modules = [file for name in PACKAGES for file in (ROOT / name).rglob("*.py")]
    return sorted([*modules, *(ROOT / name for name in ("pyproject.toml", "setup.py", "constraints.txt"))])


def _installed(client: PipClient | NpmClient | WheelClient) -> Path:
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
        elif isinstance(client, WheelClient):
            wheel_install(folder)
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


def wheel_install(folder: Path) -> None:
    """Makes a virtual environment in `folder` with a wheel of this checkout, built from a copy without a compiler: only
    a worker needs the kernels."""
    run(sys.executable, "-m", "venv", str(folder))
    pip = (str(folder / "bin" / "python"), "-I", "-m", "pip")
    limits = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_BUILD_CONSTRAINT": str(ROOT / "constraints.txt")}
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name, "tandem")
        for package in PACKAGES:
            shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
            shutil.copy(ROOT / file, copy)
        build = ("wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir", name, str(copy))
        run(*pip, *build, cwd=Path(name), env=limits | {"CC": "false", "CXX": "false"})
        (wheel,) = Path(name).glob("*.whl")
        run(*pip, "install", "--quiet", "--disable-pip-version-check", str(wheel), cwd=Path(name), env=limits)


def npm_install(client: NpmClient, folder: Path) -> None:
    """Installs exactly the packages of package-lock.json into `folder`."""
    for file in client.pin_files:
        shutil.copy(file, folder)
    run("npm", "ci", "--no-audit", "--no-fund", cwd=folder)


def run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Returns what a command writes to stdout. `env`: further variables. Raises NotInstalled with its last line on
    stderr if it fails."""
    merged = os.environ | (env or {})
    ended = subprocess.run(command, cwd=cwd, env=merged, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        lines = [line for line in ended.stderr.splitlines() if line.strip()] or [f"exit status {ended.returncode}"]
        raise NotInstalled(f"{' '.join(command)}: {lines[-1]}")
    return ended.stdout
