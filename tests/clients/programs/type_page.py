"""Types sections of docs/grpc.md in the environment of this interpreter: writes their programs, runs their commands and
compares what they print. Arguments: tandem's folder, the sections with / between them, the folder of the servers.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from report import TASKS, equal, main

ROOT, SECTIONS, SERVERS = sys.argv[1:4]
sys.path.append(ROOT)
from tests.clients.page import sections  # noqa: E402 - where it is comes as an argument


def command_run(command: str, output: str | None) -> None:
    """Runs a command in this folder; its status must be 0, and its output what the page shows."""
    for port, used in json.loads((Path(SERVERS) / "ports.json").read_text()).items():
        command = command.replace(f":{port}", f":{used}")
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env.pop("PYTHONPATH", None)
    ended = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, check=False)
    equal((ended.returncode, ended.stderr[-400:] if ended.returncode else ""), (0, ""), "the status")
    if output is not None:
        equal(ended.stdout, output, "the output")


def add_task(command: str, output: str | None) -> None:
    TASKS[command] = lambda: command_run(command, output)


for name in ("run", "credentials", "protos"):
    Path(name).symlink_to(Path(SERVERS) / name)
modules = Path(__file__).parent / "node_modules"
if modules.exists():
    Path("node_modules").symlink_to(modules)
page = sections()
for heading in SECTIONS.split("/"):
    for name, text in page[heading].files.items():
        Path(name).write_text(text)
    for typed, shown in page[heading].commands:
        add_task(typed, shown)
main()
