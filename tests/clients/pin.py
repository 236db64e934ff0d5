"""`python -m tests.clients.pin NAME...`: installs the pip clients of these names without their pins, and writes
pins/NAME.txt. For a client of npm, run `npm install --save-exact PACKAGE@VERSION` in pins/NAME and remove node_modules.
"""

import shutil
import sys
from pathlib import Path

from tests.clients.catalogue import CLIENTS, PipClient
from tests.clients.environments import CACHE, pip_install, run

HEADER = "# Written by `python -m tests.clients.pin`: all packages in the environment of this client."


def lines(frozen: str) -> list[str]:
    """Returns the constraints in the output of `pip list --format=freeze`, sorted. Leaves out what a CUDA build of
    torch brings, which it requires exactly by itself, and local versions (+cpu), which name a build."""
    listed = [line for line in frozen.splitlines() if "==" in line and not line.startswith(("nvidia-", "cuda-"))]
    return sorted((line.partition("+")[0] for line in listed), key=str.lower)


def pin(client: PipClient) -> None:
    folder = CACHE / "pinning"
    shutil.rmtree(folder, ignore_errors=True)
    client.pins.unlink(missing_ok=True)
    pip_install(client, folder)
    write(client, folder)
    shutil.rmtree(folder)


def write(client: PipClient, folder: Path) -> None:
    """Writes the pins of a client from the environment in `folder`."""
    ours = ("--exclude=pip", "--exclude=setuptools")
    frozen = run(str(folder / "bin" / "python"), "-m", "pip", "list", "--format=freeze", *ours)
    client.pins.write_text("".join(f"{line}\n" for line in [HEADER, *lines(frozen)]))


def main(names: list[str]) -> None:
    clients = {client.name: client for client in CLIENTS if isinstance(client, PipClient)}
    if not names or not set(names) <= clients.keys():
        sys.exit(f"{__doc__}\nNames: {', '.join(clients)}")
    for name in names:
        pin(clients[name])


if __name__ == "__main__":
    main(sys.argv[1:])
