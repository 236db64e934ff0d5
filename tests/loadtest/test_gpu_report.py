"""What a run of `python -m loadtest.gpu` writes: rows, log, archives; and what it leaves running: nothing."""

import json
import sys
import tarfile
import time
from pathlib import Path

import pytest

from loadtest.gpu import output, packing
from loadtest.gpu.__main__ import main, num_processes
from loadtest.gpu.report import Report
from loadtest.gpu.table import Check, Measured, Note, NotRun, Row, run_check

# Checks without a device: one with data and a file, one that cannot run, one that fails.
CHECKS = """
import argparse, pathlib
from loadtest.gpu import output
from loadtest.gpu.child import serve
from loadtest.gpu.table import Check, Measured, NotRun
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=pathlib.Path)
output.set_folder(parser.parse_known_args()[0].out)
def measured():
    output.file("trace.json").write_text("[]")
    print("a line of a library")
    return Measured("long " * 100, ms=1.5)
def absent():
    raise NotRun("needs wings")
def fails():
    raise ValueError("wrong")
checks = [Check("measured", measured), Check("absent", absent), Check("fails", fails)]
serve(checks, lambda: True, about={"machine": "a toaster"})
"""
# A check that starts a process of its own and never ends. The process writes its id into the file PATH.
LEAVES = """
import subprocess, sys, threading
from loadtest.gpu.child import serve
from loadtest.gpu.table import Check
code = "import os, pathlib, time; pathlib.Path(PATH).write_text(str(os.getpid())); time.sleep(600)"
def run():
    subprocess.Popen([sys.executable, "-c", code.replace("PATH", repr(PATH))])
    threading.Event().wait()
serve([Check("leaves", run)], lambda: True)
"""


# A process that does not end when its stdin closes.
STAYS = """
import threading
from loadtest.gpu.child import serve
from loadtest.gpu.table import Check
serve([Check("passes", lambda: "")], lambda: True)
threading.Event().wait()
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def child(code: str) -> tuple[str, str, str]:
    return sys.executable, "-c", code


def test_a_row_has_result_seconds_and_data() -> None:
    def not_run() -> str:
        raise NotRun("no tool")

    measured = run_check(Check("a", lambda: Measured("two", ms=2)))
    assert (measured.result, measured.detail, measured.data) == ("ok", "two", {"ms": 2})
    assert measured.seconds > 0
    assert run_check(Check("b", lambda: Note("slow", ms=3))).result == "note"
    assert run_check(Check("c", lambda: "plain")).data == {}
    assert run_check(Check("d", not_run)) == Row("d", "not run", "no tool")


def test_rows_log_and_files_are_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["--device", "cpu", "--call", "A", "--out", str(out)], child(CHECKS)) == 1
    table = capsys.readouterr().out
    first, *rows = (json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines())
    assert (first["call"], first["machine"]) == ("A", "a toaster")
    assert first["date"][:2] == "20"
    assert [(row["index"], row["name"], row["result"]) for row in rows[:3]] == [
        (0, "measured", "ok"), (1, "absent", "not run"), (2, "fails", "FAIL"),
    ]  # fmt: skip
    assert rows[0]["data"] == {"ms": 1.5}
    assert rows[0]["detail"] == "long " * 100
    assert rows[1]["detail"] == "needs wings"
    assert max(map(len, table.splitlines())) < 60 + 7 + 160 + 20
    log = (out / "log.txt").read_text()
    assert "a line of a library\n" in log and "ValueError: wrong" in log
    with tarfile.open(out / "files.tar.gz") as files:
        assert files.getnames() == ["trace.json"]
    assert sorted(path.name for path in out.iterdir()) == ["files.tar.gz", "log.txt", "rows.jsonl"]
    assert table.endswith("3 checks, 1 failed, 1 not run\n")


def test_what_a_check_started_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    assert main(["--device", "cpu", "--seconds", "5"], child(f"PATH = {str(path)!r}" + LEAVES)) == 0
    pid, deadline = int(path.read_text()), time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline, "the process of the check still runs"
        time.sleep(0.05)


def test_a_process_that_does_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loadtest.gpu.child.STOP_SECONDS", 0.5)
    began = time.monotonic()
    assert main(["--device", "cpu", "--seconds", "60"], child(STAYS)) == 0
    assert time.monotonic() - began < 30
    assert "passes" in capsys.readouterr().out


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_rows_are_written_as_they_come_and_printed_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("B", tmp_path)
    report.begin(["a", "b", "c"], {})
    report.take(1, Row("b", "ok", ""))
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[1])["index"] == 1
    report.take(0, Row("a", "ok", ""))
    assert [row.result for row in report.finish()] == ["ok", "ok", "not run"]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["a", "b", "c"]


def test_a_file_name_has_no_folder(tmp_path: Path) -> None:
    output.set_folder(tmp_path / "files")
    try:
        assert output.file("a.json") == tmp_path / "files" / "a.json"
        with pytest.raises(AssertionError, match="not a plain file name"):
            output.file("../a.json")
    finally:
        output.set_folder(None)
    assert output.file("a.json").parent.is_dir()
    assert tmp_path not in output.file("a.json").parents


def make_cache(folder: Path) -> None:
    """A compiled kernel as Triton 3.6 and 3.7 store it, and one that is being written."""
    kernel = folder / "HASH"
    kernel.mkdir(parents=True)
    for name in ("add.cubin", "add.ttir", "add.json"):
        (kernel / name).write_text(name)
    paths = {name: str(kernel / name) for name in ("add.cubin", "add.ttir", "add.json")}
    (kernel / "__grp__add.json").write_text(json.dumps({"child_paths": paths}))
    (kernel / "tmp.pid_1_a").mkdir()
    (kernel / "tmp.pid_1_a" / "sub.cubin").write_text("half")


def test_a_packed_cache_serves_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cache(tmp_path / "one")
    archive = tmp_path / "cache.tar.gz"
    assert packing.pack(tmp_path / "one", archive, packing.is_loaded)[0] == 3
    assert packing.unpack_cache(archive, tmp_path / "two") == "1 kernels unpacked"
    (tmp_path / "one").rename(tmp_path / "gone")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "two"))
    from triton.runtime.cache import FileCacheManager

    group = FileCacheManager("HASH").get_group("add.json")
    assert group == {name: str(tmp_path / "two" / "HASH" / name) for name in ("add.cubin", "add.json")}


def test_a_large_cache_is_not_packed(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cache(own_cache)
    monkeypatch.setattr(packing, "MAX_BYTES", 10)
    out = tmp_path / "out"
    assert main(["--device", "cpu", "--out", str(out)], child(CHECKS)) == 1
    rows = {row["name"]: row for row in map(json.loads, (out / "rows.jsonl").read_text().splitlines()) if "name" in row}
    assert rows["Triton's cache"]["result"] == "note"
    assert not (out / "triton-cache.tar.gz").exists()
    assert rows["files of the checks"]["result"] == "note"
    assert (out / "files" / "trace.json").exists(), "what could not be packed stays"


@pytest.mark.parametrize("damage", ["absent", "cut", "outside"])
def test_a_cache_that_cannot_be_used_is_a_note(damage: str, tmp_path: Path, own_cache: Path) -> None:
    make_cache(tmp_path / "one")
    archive, out = tmp_path / "cache.tar.gz", tmp_path / "out"
    packing.pack(tmp_path / "one", archive)
    if damage == "absent":
        archive.unlink()
    elif damage == "cut":
        archive.write_bytes(archive.read_bytes()[:60])
    else:
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(tmp_path / "one" / "HASH" / "add.json", "../outside.json")
    assert main(["--device", "cpu", "--out", str(out), "--cache", str(archive)], child(CHECKS)) == 1
    rows = {row["name"]: row for row in map(json.loads, (out / "rows.jsonl").read_text().splitlines()) if "name" in row}
    assert rows[f"{packing.EARLIER_ROW}: {archive}"]["result"] == "note"
    assert rows["measured"]["result"] == "ok"
    assert not (tmp_path / "outside.json").exists()


def test_the_cache_of_an_earlier_call_is_used_and_packed_again(tmp_path: Path, own_cache: Path) -> None:
    make_cache(tmp_path / "one")
    archive, out = tmp_path / "cache.tar.gz", tmp_path / "out"
    packing.pack(tmp_path / "one", archive, packing.is_loaded)
    main(["--device", "cpu", "--out", str(out), "--cache", str(archive)], child(CHECKS))
    assert (own_cache / "HASH" / "add.cubin").read_text() == "add.cubin"
    with tarfile.open(out / "triton-cache.tar.gz") as packed:
        assert len(packed.getnames()) == 3


@pytest.mark.parametrize(("cores", "processes"), [(16, 14), (4, 2), (2, 1), (1, 1)])
def test_all_cores_but_two_compile(cores: int, processes: int) -> None:
    assert num_processes(cores) == processes
