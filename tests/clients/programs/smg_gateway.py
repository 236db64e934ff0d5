"""Starts SMG's gateway in front of tandem's gateway API, and asks either of the two over HTTP.

Imports only the standard library, which is all that SMG's environment has.
"""

import atexit
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from report import FOLDER, MODEL, SECONDS, URL, check

GATEWAY, SERVER_PID = sys.argv[4], int(sys.argv[5])
START_SECONDS = 60.0


def wait_for(condition, what, seconds=20.0):
    """Returns the first true value of `condition`. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        check(time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s")
        threading.Event().wait(0.02)
    return value


def send(url, method, path, body=None):
    """Returns the connection on which the request has been sent."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, {"Content-Type": "application/json"})
    return connection


def fetch(url, path, body=None):
    """Returns status and decoded JSON of an answer."""
    with contextlib.closing(send(url, "GET" if body is None else "POST", path, body)) as connection:
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def ask(url, path, **body):
    """Returns the JSON of an answer with status 200."""
    status, answer = fetch(url, path, {"model": MODEL, **body})
    check(status == 200, f"status {status}: {answer}")
    return answer


def events(url, path, **body):
    """Yields the JSON of each event of a stream. Fails unless the last event is [DONE]."""
    with contextlib.closing(send(url, "POST", path, {"model": MODEL, "stream": True, **body})) as connection:
        response = connection.getresponse()
        check(response.status == 200, f"status {response.status}: {response.status != 200 and response.read()}")
        last = ""
        for line in response:
            if line.startswith(b"data: "):
                last = line.removeprefix(b"data: ").decode().strip()
                if last != "[DONE]":
                    yield json.loads(last)
        check(last == "[DONE]", f"the last event is {last[:200]!r}")


class Smg:
    """`smg launch` in front of tandem, until the end of this program."""

    def __init__(self, *more):
        ports = [free_port() for _ in range(2)]
        self.url = f"http://127.0.0.1:{ports[0]}"
        command = [str(Path(sys.executable).parent / "smg"), "launch", "--host", "127.0.0.1", "--port", str(ports[0])]
        command += ["--worker-urls", f"grpc://{GATEWAY}", "--prometheus-port", str(ports[1]), "--log-level", "warn"]
        command += ["--health-check-interval-secs", "1", "--load-monitor-interval", "1", *more]
        self._log = Path("smg.log").open("wb")  # noqa: SIM115 - open as long as the program
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        atexit.register(self.stop)
        wait_for(self._ready, "SMG serves the model", START_SECONDS)

    def _ready(self):
        check(self._process.poll() is None, f"SMG ended: {Path('smg.log').read_text(errors='replace')[-500:]}")
        try:
            workers = fetch(self.url, "/workers")[1]["workers"]
            models = fetch(self.url, "/v1/models")[1]["data"]
            return [worker["is_healthy"] for worker in workers] == [True] and [one["id"] for one in models] == [MODEL]
        except (OSError, ValueError, KeyError):
            return False

    def stop(self):
        self._process.kill()
        self._process.wait()


def with_tokenizer():
    return Smg("--model-path", FOLDER)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def kill(role):
    """Kills the process of `tandem serve` that has this role. Returns whether there was one."""
    for pid in map(int, Path(f"/proc/{SERVER_PID}/task/{SERVER_PID}/children").read_text().split()):
        if role in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def gauge(name):
    """Returns the sum of a metric's values, from tandem's /metrics."""
    with contextlib.closing(send(URL, "GET", "/metrics")) as connection:
        lines = connection.getresponse().read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))
