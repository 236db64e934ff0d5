"""The runner of client programs, with programs of a few lines: no environment is made, no server started."""

import json
import sys
import time
from pathlib import Path

import pytest

from tests.clients.catalogue import CLIENTS, PINS, PROGRAMS, CommandClient, NpmClient, PipClient
from tests.clients.environments import environment, key
from tests.clients.pin import HEADER, lines
from tests.clients.run import PROGRAM, Result, read, run
from tests.openapi.__main__ import SCHEMATHESIS

PIP = [client for client in CLIENTS if isinstance(client, PipClient)]
NPM = [client for client in CLIENTS if isinstance(client, NpmClient)]
TASKS = """
import json
from report import check, equal, main, task

@task
def right():
    print("a client writes what it likes {")

@task
async def wrong():
    equal(1 + 1, 3, "the sum")

@task
def raises():
    json.loads("")
"""


def program(folder: Path, text: str) -> list[str]:
    """Returns the command line of a program with this text, which may import report."""
    file = folder / "program.py"
    file.write_text(f"import sys\nsys.path.insert(0, {str(PROGRAMS)!r})\n{text}")
    return [sys.executable, str(file), "http://127.0.0.1:1", "model", "folder"]


def test_each_task_has_a_result(tmp_path: Path) -> None:
    right, wrong, raises = run(program(tmp_path, f"{TASKS}\nmain()"), 60)
    assert right == Result("right", True, "")
    assert wrong == Result("wrong", False, "the sum is 2, not 3")
    assert (raises.task, raises.passed) == ("raises", False)
    assert raises.reason.startswith("JSONDecodeError: Expecting value")


def test_an_error_of_a_client_is_told_with_the_servers_refusal(tmp_path: Path) -> None:
    refused = """
import http.client, http.server, threading
import report

class Refusing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

@task
def refused():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        report.URL = f"http://127.0.0.1:{server.server_port}"
        try:
            with report.refusals_in_reason() as url:
                client = http.client.HTTPConnection(url.removeprefix("http://"))
                client.request("GET", "/")
                json.loads(client.getresponse().read())
        finally:
            server.shutdown()
main()
"""
    result = run(program(tmp_path, TASKS + refused), 60)[-1]
    assert (result.task, result.passed) == ("refused", False)
    assert result.reason.startswith("the server's answer is 501 ")
    assert "Unsupported method ('GET')" in result.reason and "Expecting value" in result.reason


def test_a_program_that_ends_in_a_task_fails_that_task(tmp_path: Path) -> None:
    died = "@task\ndef dies():\n    sys.exit('no more')\nmain()"
    results = run(program(tmp_path, f"{TASKS}\n{died}"), 60)
    assert [result.task for result in results] == ["right", "wrong", "raises", "dies"]
    assert results[-1] == Result("dies", False, "the program ended early, exit status 1: no more")


def test_a_program_that_cannot_start_fails(tmp_path: Path) -> None:
    (result,) = run(program(tmp_path, "import no_such_client"), 60)
    assert (result.task, result.passed) == (PROGRAM, False)
    assert "No module named 'no_such_client'" in result.reason


def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    slow = """
import subprocess
@task
def waits():
    subprocess.run([sys.executable, "-c", "import signal; signal.pause()"])
main()
"""
    began = time.monotonic()
    results = run(program(tmp_path, TASKS + slow), 3)
    assert results[-1] == Result("waits", False, "the program ended early, not done after 3 s")
    assert time.monotonic() - began < 30


def test_a_program_has_an_empty_folder_and_leaves_no_file(tmp_path: Path) -> None:
    leaves = """
import os, tempfile
@task
def leaves():
    equal(os.listdir(), [], "the folder")
    files = [tempfile.mkstemp()[1], os.path.abspath("here")]
    open(files[1], "w").close()
    open(FOLDER, "w").write(" ".join(files))
main()
"""
    kept = tmp_path / "kept"
    *command, _ = program(tmp_path, f"from report import FOLDER\n{TASKS}\n{leaves}")
    assert run([*command, str(kept)], 60)[-1] == Result("leaves", True, "")
    files = [Path(name) for name in kept.read_text().split()]
    assert len(files) == 2 and not any(file.exists() or file.parent.exists() for file in files)


def test_a_program_must_report_every_task() -> None:
    done = json.dumps({"task": "one", "passed": True, "reason": ""})
    one = Result("one", True, "")
    assert read(f'{done}\n{{"ended": 1}}\n', "") == [one]
    assert [result.passed for result in read(f'{done}\n{{"ended": 2}}\n', "")] == [True, False]
    assert [result.passed for result in read('{"ended": 0}\n', "")] == [False]


def test_every_program_belongs_to_a_client() -> None:
    shared = {"report.py", "report.mjs", "relay.py", "recorder.py", "weather.py", "weather.mjs", "played.py"}
    shared |= {"openai_calls.py", "openai_no_ops.py", "openai_tools.py", "langchain_tools.py", "smg_gateway.py"}
    shared |= {"forms.py", "forms.mjs", "pydantic_forms.py", "openai_forms.py", "langchain_forms.py"}
    found = {path.name for path in PROGRAMS.iterdir() if path.suffix in (".py", ".mjs")}
    assert found - shared == {client.program for client in CLIENTS}
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)


@pytest.mark.parametrize("client", PIP, ids=lambda client: client.name)
def test_the_pins_of_a_pip_client_have_its_requirements(client: PipClient) -> None:
    header, *pins = client.pins.read_text().splitlines()
    assert header == HEADER
    pinned = {line.partition("==")[0].replace("_", "-").lower(): line.partition("==")[2] for line in pins}
    for requirement in client.requirements:
        name, _, version = requirement.partition("==")
        assert pinned[name.partition("[")[0]] == version


@pytest.mark.parametrize("client", NPM, ids=lambda client: client.name)
def test_the_lock_of_an_npm_client_has_its_package(client: NpmClient) -> None:
    lock = json.loads((client.pins / "package-lock.json").read_text())
    assert lock["packages"][f"node_modules/{client.package}"]["version"] == client.version


def test_there_are_no_other_pins() -> None:
    assert {path.stem for path in PINS.iterdir()} == {client.name for client in [*PIP, *NPM, SCHEMATHESIS]}


def test_another_requirement_is_another_environment() -> None:
    first, second = (PipClient("openai", (f"openai=={version}",), "ask_openai.py") for version in ("1", "2"))
    assert key(first) == key(first) != key(second)


def test_a_command_that_is_not_on_the_path_has_no_environment() -> None:
    assert environment(CommandClient("none", "no-such-command", "bench_vllm.py")) is None


def test_pins_leave_out_builds() -> None:
    frozen = "torch==2.13.0+cpu\nnvidia-nccl-cu12==2.27\nAnyio==4.16.0\n-e git\n"
    assert lines(frozen) == ["Anyio==4.16.0", "torch==2.13.0"]
