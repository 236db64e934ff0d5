"""`tandem serve` on the device: started as a process, asked once over HTTP, ended. The demo checkpoint on free port."""

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import torch

import demo
from loadtest.gpu import output
from loadtest.gpu.answers import QUESTION
from loadtest.gpu.table import Check, Measured

READY_SECONDS = 100.0  # from the start to the first 200 of /health
ANSWER_SECONDS = 30.0
STOP_SECONDS = 10.0  # from SIGTERM to SIGKILL
POLL_SECONDS = 0.2
NAME = "demo"
LOG = "serve.log"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy of the environment


def checks(device: torch.device) -> list[Check]:
    return [Check("tandem serve: one chat completion over HTTP", functools.partial(serve_and_ask, device))]


def serve_and_ask(device: torch.device) -> Measured:
    """Asserts that a server of the demo checkpoint becomes ready and answers a chat request, and that it ends with
    status 0. Returns the seconds until it was ready and those of the request, and the answer."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, server(device, folder) as (url, process):
        wait_until_ready(url, process, began + READY_SECONDS)
        ready = time.monotonic() - began
        content = {"model": NAME, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        asked = time.monotonic()
        answer = post(f"{url}/v1/chat/completions", content | {"max_tokens": 32})
        seconds = time.monotonic() - asked
        process.terminate()
        status = process.wait(STOP_SECONDS)
    text = answer["choices"][0]["message"]["content"]
    assert text, f"the answer has no text: {answer}"
    assert status == 0, f"the server ended with status {status}"
    detail = f"ready after {ready:.1f} s, answered in {1000 * seconds:.0f} ms: {text!r}"
    return Measured(detail, ready_s=ready, answer_s=seconds, text=text, usage=answer["usage"])


@contextlib.contextmanager
def server(device: torch.device, folder: str) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Starts `tandem serve` with its sockets in `folder`. Yields its URL and its process, which is ended at the end.

    Its log goes to LOG, a file of the call.
    """
    port = free_port()
    command = [
        *(sys.executable, "-m", "services.cli", "serve", str(demo.CHECKPOINT)),
        *("--device", device.type, "--host", "127.0.0.1", "--port", str(port)),
        *("--runtime-dir", folder, "--served-model-name", NAME),
    ]
    # On a CPU without the compiled kernels, which only `pip install` builds.
    command += ["--gpu-memory-utilization", "0.5"] if device.type == "cuda" else ["--no-batch-invariant"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with output.file(LOG).open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            end(process)


def free_port() -> int:
    """Returns a TCP port of the loopback address that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(url: str, process: "subprocess.Popen[bytes]", deadline: float) -> None:
    """Waits until /health answers 200. `deadline`: as time.monotonic(). Raises AssertionError with the log's last
    lines if the process ends or the deadline passes before."""
    while not is_healthy(url):
        status = process.poll()
        assert status is None, f"the server ended with status {status}: {last_lines()}"
        assert time.monotonic() < deadline, f"not ready after {READY_SECONDS:.0f} s: {last_lines()}"
        time.sleep(POLL_SECONDS)


def is_healthy(url: str) -> bool:
    try:
        with OPENER.open(f"{url}/health", timeout=1) as response:
            return bool(response.status == 200)
    except OSError:  # refused, timed out, or another status (urllib.error.HTTPError)
        return False


def post(url: str, content: dict[str, Any]) -> Any:
    """Returns the JSON that the server answers. Raises RuntimeError with its body for a status other than 200."""
    request = urllib.request.Request(
        url, data=json.dumps(content).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with OPENER.open(request, timeout=ANSWER_SECONDS) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"status {error.code}: {error.read().decode(errors='replace')}") from error


def end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_lines() -> str:
    """Returns the last two lines of the log: often an exception of a role, and that it ended."""
    lines = output.file(LOG).read_text(errors="replace").splitlines()
    return " / ".join([line for line in lines if line.strip()][-2:]) or "its log is empty"
