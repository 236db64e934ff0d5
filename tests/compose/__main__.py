"""`make compose-test`: builds the images and starts compose.yaml on the Docker engine that DOCKER_HOST names. Sends
requests with curl and by gRPC, checks health, metrics, users and a trace through all containers, removes everything.

Settings, from the environment: BUILD_NETWORK, TORCH, TORCH_INDEX (see compose.yaml) and TANDEM_PORT (a free one).
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.addresses import free_port
from tests.clients.page import sections

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "tandem-compose-test"
ROLES = ("shim", "tokenizer", "engine", "worker")
LIGHT = f"{PROJECT}-light"
FILES = ("compose.yaml", "tests/compose/collector.yaml", "tests/compose/program.yaml")
QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "What is 17 + 25?"}]}
ANSWER = "42"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


def compose_command() -> list[str]:
    """Returns the command `docker compose`, or docker-compose if the plugin is not installed, with project and files.
    Exits if neither is installed."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    command = ["docker", "compose"] if plugin.returncode == 0 else ["docker-compose"]
    if shutil.which(command[0]) is None:
        sys.exit("neither docker compose nor docker-compose is installed")
    return [*command, "-p", PROJECT, *(part for file in FILES for part in ("-f", file))]


class Stack:
    def __init__(self) -> None:
        self._compose = compose_command()
        self.port = os.environ.get("TANDEM_PORT") or str(free_port())
        self._env = os.environ | {
            "TANDEM_IMAGE": PROJECT,
            "TANDEM_PORT": self.port,
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
        }

    def compose(self, *args: str) -> str:
        return self._run(*self._compose, *args)

    def docker(self, *args: str) -> str:
        return self._run("docker", *args)

    def container(self, role: str) -> str:
        return self.compose("ps", "-q", role).strip()

    def inspect(self, role: str) -> Any:
        return json.loads(self.docker("inspect", self.container(role)))[0]

    def curl(self, path: str, *args: str) -> str:
        return self._run("curl", "-sS", "--max-time", "60", f"http://127.0.0.1:{self.port}{path}", *args)

    def _run(self, *command: str) -> str:
        ended = subprocess.run(command, cwd=ROOT, env=self._env, stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with status {ended.returncode}\n{ended.stdout}")
        return ended.stdout


def wait_for(condition: Callable[[], Any], what: str, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within {seconds:.0f} s")
        threading.Event().wait(0.5)
    return value


def check(what: str, holds: bool, detail: str = "") -> None:
    print(f"{'ok' if holds else 'FAILED'}: {what}{'  ' + detail if detail else ''}", flush=True)
    if not holds:
        sys.exit(1)


def look_at_images(stack: Stack) -> None:
    def with_module(module: str) -> list[str]:
        code = f"import importlib.util as u; print(u.find_spec('{module}') is not None)"
        return [role for role in ROLES if stack.compose("exec", "-T", role, "python", "-c", code).strip() == "True"]

    torch = with_module("torch")
    sizes = {name: int(stack.docker("image", "inspect", "--format={{.Size}}", name)) / 1e6 for name in (PROJECT, LIGHT)}
    detail = ", ".join(f"{name} {megabytes:.0f} MB" for name, megabytes in sizes.items())
    check("the worker alone has torch", torch == ["worker"] and sizes[LIGHT] < sizes[PROJECT], detail)
    check("the shim has the protos of --grpc-port", "shim" in with_module("smg_grpc_proto"))


def look_from_outside(stack: Stack) -> None:
    """Runs without_secret.py in a fifth container on the same network, and checks that only the shim and /health
    answer. Then checks the containers' privileges and the mode of the secret."""
    code = (ROOT / "tests" / "compose" / "without_secret.py").read_text()
    network = f"{PROJECT}_default"
    found = stack.docker("run", "--rm", "--network", network, "--entrypoint", "python", LIGHT, "-c", code)
    answers = json.loads(found.splitlines()[-1])
    open_ones = sorted(name for name, answered in answers.items() if answered)
    wanted = [
        "engine /health",
        "shim /health",
        "shim /metrics",
        "shim /v1/models",
        "tokenizer /health",
        "worker /health",
    ]
    check("a container without the secret finds the shim and /health alone", open_ones == wanted, str(answers))
    for role in ROLES:
        host = stack.inspect(role)["HostConfig"]
        right = host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"]
        check(f"{role}: read-only, without capabilities", right and (role == "shim" or not host["PortBindings"]))
    mode = stack.compose("exec", "-T", "shim", "stat", "-c", "%a %u", "/run/tandem/secret").strip()
    check("the secret is readable by the roles' user alone", mode == "400 1000", mode)


def look_from_a_program(stack: Stack) -> None:
    """Runs the packaged client's program of docs/grpc.md in a fifth container, which has credentials."""
    page = sections()["The packaged client"]
    wanted = next(output for command, output in page.commands if "credentials" in command)
    said = stack.compose("run", "--rm", "-T", "--no-deps", "credentials").strip()
    check("a container with the secret writes credentials", "ca.pem" in said, said)
    arguments = ("-c", page.files["client.py"], "tokenizer:8001", "/run/tandem/credentials")
    found = stack.compose("run", "--rm", "-T", "--no-deps", "program", *arguments)
    check("a program in a fifth container gets an answer by gRPC", found == wanted, found.strip())


def look(stack: Stack) -> None:
    """Checks everything that must hold while the containers run. Exits with status 1 at the first failure."""
    began = time.monotonic()
    healthy = lambda: all(stack.inspect(role)["State"]["Health"]["Status"] == "healthy" for role in ROLES)  # noqa: E731
    wait_for(healthy, "all containers are healthy", 300)
    check("four containers are healthy", True, f"after {time.monotonic() - began:.0f} s")
    users = {role: stack.compose("exec", "-T", role, "id", "-u").strip() for role in ROLES}
    check("none runs as root", "0" not in users.values(), str(users))
    look_at_images(stack)
    trace = ("-H", f"traceparent: 00-{TRACE_ID}-b7ad6b7169203331-01")
    json_body = ("-H", "Content-Type: application/json", "-d", json.dumps(QUESTION))
    answer = stack.curl("/v1/chat/completions", *json_body, *trace)
    check("curl gets an answer", ANSWER in json.loads(answer)["choices"][0]["message"]["content"], answer.strip())
    look_from_outside(stack)
    look_from_a_program(stack)
    metrics = stack.curl("/metrics")
    up = [role for role in ROLES if f'tandem:process_up{{process="{role}"}} 1.0' in metrics]
    check("one scrape covers all processes", len(up) == len(ROLES), str(up))

    def instances() -> set[str]:
        lines = stack.compose("logs", "--no-color", "collector").splitlines()
        spans = [json.loads(line[line.index("{") :]) for line in lines if "{" in line]
        found = {span["instance"] for span in spans if span["trace_id"] == TRACE_ID}
        return found if len(found) == len(ROLES) else set()

    check("one trace crosses four containers", True, str(sorted(wait_for(instances, "spans of four instances", 60))))


def main() -> None:
    stack = Stack()
    with contextlib.ExitStack() as cleaning:
        cleaning.callback(lambda: stack.docker("rmi", "--force", PROJECT, LIGHT))
        stack.compose("build")
        cleaning.callback(lambda: stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "10"))
        stack.compose("up", "--detach")
        try:
            look(stack)
        except SystemExit:
            sys.stderr.write(stack.compose("logs", "--no-color", "--tail", "40"))
            raise
    label = f"label=com.docker.compose.project={PROJECT}"
    left = [stack.docker(kind, "ls", "--quiet", "--filter", label, *more).split()
            for kind, more in (("container", ["--all"]), ("network", []), ("volume", []))]  # fmt: skip
    left += [stack.docker("image", "ls", "--quiet", name).split() for name in (PROJECT, LIGHT)]
    check("nothing is left", not any(left), str(left))


if __name__ == "__main__":
    main()
