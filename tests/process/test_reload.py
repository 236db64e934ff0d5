"""A reload replaces groups of children in order, each once the one before is ready, and stops where one is not."""

import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.process import reload as module
from services.process.control_file import ControlFile, read
from services.process.reload import ReloadFailed, check_protocol, reload
from services.version import PROTOCOL

GROUPS = (["tokenizer"], ["tokenizer-1"], ["engine", "worker"])
NAMES = [name for group in GROUPS for name in group]


class Children:
    """What a reload needs of ChildProcesses. `ready`: the children whose new process is ready."""

    def __init__(self) -> None:
        self.children: dict[str, Any] = {}
        self.ready: set[str] = set()
        self.loading: set[str] = set()
        self.steps: list[str] = []
        for name in NAMES:
            self.children[name] = type("Child", (), {"process": object(), "name": name})()

    def role_of(self, name: str) -> str:
        return name.partition("-")[0]

    def renew_spare(self, role: str) -> None:
        self.steps.append(f"spare {role}")

    def is_replaceable(self, name: str) -> bool:
        return name not in self.loading

    def replace(self, name: str) -> None:
        self.steps.append(name)

    def metrics_address(self, name: str) -> str:
        return name


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    made = Children()
    monkeypatch.setattr(module, "is_ready", lambda address: address in made.ready)
    monkeypatch.setattr(module, "REST_SECONDS", 0)
    monkeypatch.setattr(module, "check_protocol", lambda: iter(()))
    return made


def steps(children: Any, control: ControlFile) -> Iterator[None]:
    return reload(children, GROUPS, control)


def test_groups_are_replaced_one_after_the_other(children: Children, tmp_path: Path) -> None:
    """The spare of each role is renewed once: the one after it has loaded the new code."""
    control = ControlFile(tmp_path)
    running = steps(children, control)
    for group in GROUPS:
        children.loading = {group[-1]}
        next(running)
        assert not set(group) & set(children.steps), "none ends before all spares are loaded"
        children.loading.clear()
        next(running)
        assert children.steps[-len(group) :] == group
        for name in group:
            children.children[name].process = object()
        next(running)  # the new ones are not ready
        children.ready.update(group)
    assert list(running) == []
    found = read(tmp_path)
    tokenizers = ["spare tokenizer", "tokenizer", "tokenizer-1"]
    assert children.steps == [*tokenizers, "spare engine", "spare worker", "engine", "worker"]
    assert found is not None and (found.state, found.text) == ("done", "4 processes are replaced")


def test_the_next_one_waits_until_requests_have_gone_on(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module, "REST_SECONDS", 5)
    running = steps(children, ControlFile(tmp_path))
    next(running)
    children.children["tokenizer"].process = object()
    children.ready.add("tokenizer")
    for clock[0] in (0.0, 4.9):
        next(running)
        assert "tokenizer-1" not in children.steps
    clock[0] = 5.0
    next(running)
    assert children.steps[-1] == "tokenizer-1"


def test_it_stops_at_a_process_that_is_not_ready(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.2)
    control = ControlFile(tmp_path)
    running = steps(children, control)
    next(running)
    children.children["tokenizer"].process = object()
    assert all(one is None for one in running)
    found = read(tmp_path)
    assert found is not None and (found.state, found.text) == ("failed", "the new tokenizer was not ready within 0 s")
    assert "engine" not in children.steps and "the reload has failed: the new tokenizer" in caplog.text


def test_without_the_runtime_directory_nothing_is_replaced(
    children: Children, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    control = ControlFile(folder)
    shutil.rmtree(folder)
    assert list(steps(children, control)) == [] and children.steps == []
    assert "the reload has failed: the runtime directory was removed" in caplog.text


@pytest.mark.parametrize(
    ("printed", "failure"), [(str(PROTOCOL), ""), ("99", "has protocol 99"), ("", "cannot be imported")]
)
def test_an_installation_with_another_protocol_is_refused(
    printed: str, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shim stays, and could not talk to its processes."""
    monkeypatch.setattr(module, "ASK_PROTOCOL", f"print({printed!r})")
    if not failure:
        assert all(one is None for one in check_protocol())
        return
    with pytest.raises(ReloadFailed, match=f"the installed tandem {failure}, the running one has protocol {PROTOCOL}"):
        list(check_protocol())


def test_an_installation_that_cannot_be_started_or_does_not_answer_is_refused(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server goes on, and looks at its processes while it waits."""
    monkeypatch.setattr(module, "check_protocol", check_protocol)
    monkeypatch.setattr(module, "ASK_PROTOCOL", "import time; time.sleep(60)")
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.2)
    with pytest.raises(ReloadFailed, match="the installed tandem was not imported within 0 s"):
        list(check_protocol())
    waiting = check_protocol()
    next(waiting)
    waiting.close()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    assert list(steps(children, ControlFile(tmp_path))) == [] and children.steps == []
    assert "the reload has failed: the installed tandem cannot be started: [Errno 2]" in caplog.text
