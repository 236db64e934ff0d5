"""What another command reads of a launcher, and which servers it finds."""

import os
import tempfile
from pathlib import Path

import pytest

from services.process import control_file
from services.process.control_file import DONE, FAILED, RUNNING, ControlFile, read, running


def test_it_tells_of_reloads_until_it_is_removed(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    with ControlFile(tmp_path) as control:
        follow(control, tmp_path)
    assert read(tmp_path) is None


def follow(control: ControlFile, tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found is not None and (found.pid, found.reloads, found.state) == (os.getpid(), 0, DONE)
    control.begin()
    control.report(RUNNING, "half")
    found = read(tmp_path)
    assert found is not None and (found.reloads, found.state, found.text) == (1, RUNNING, "half")
    control.report(FAILED, "why")
    found = read(tmp_path)
    assert found is not None and (found.reloads, found.state, found.text) == (1, FAILED, "why")


def test_a_launcher_that_has_ended_is_none(tmp_path: Path) -> None:
    """Also if another process has its id by now."""
    (tmp_path / control_file.NAME).write_text(f'{{"pid": {os.getpid()}}}')
    assert read(tmp_path) is None
    (tmp_path / control_file.NAME).write_text("no JSON")
    assert read(tmp_path) is None


def test_servers_without_a_runtime_dir_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "tandem-abc").mkdir()
    (tmp_path / "tandem-old").mkdir()
    with ControlFile(tmp_path / "tandem-abc"):
        found = list(running())
    assert [folder for folder in found if folder.parent == tmp_path] == [tmp_path / "tandem-abc"]


def test_servers_are_found_without_a_directory_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, which is also that of TMPDIR."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "tandem-abc").mkdir()
    with pytest.raises(FileNotFoundError):
        tempfile.gettempdir()
    with ControlFile(tmp_path / "tandem-abc"):
        found = list(running())
    assert [folder for folder in found if folder.parent == tmp_path] == [tmp_path / "tandem-abc"]


def test_a_server_under_two_names_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", ".")
    (tmp_path / "tandem-abc").mkdir()
    with ControlFile(tmp_path / "tandem-abc"):
        found = list(running())
    assert [folder.name for folder in found].count("tandem-abc") == 1


def test_a_file_that_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ControlFile(tmp_path / "none")
    assert "launcher.json: cannot be written: No such file or directory" in caplog.text
