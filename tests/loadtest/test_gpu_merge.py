"""The merged page of several calls, from the rows of a call on the CPU."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from loadtest.gpu.__main__ import main as run
from loadtest.gpu.merge import main, merged, read

NAME = "compile products of small shapes, 64 x 1024"


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a call on the CPU with two rows of the small form, and one that needs a GPU."""
    out = tmp_path_factory.mktemp("gpu") / "A"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(out.parent / "cache"))
        assert run(["--device", "cpu", "--call", "A", "--out", str(out), "--only", "machine", NAME, "limits of"]) == 0
    return out


def changed(call: Path, folder: Path, **rows: dict[str, Any]) -> Path:
    """Copies a call into `folder`, with the rows of these names changed."""
    shutil.copytree(call, folder)
    path = folder / "rows.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | rows.get(line.get("name", ""), {})) + "\n" for line in lines))
    return folder


def merge(tmp_path: Path, *folders: Path) -> list[Path]:
    """Returns the files that the merge wrote."""
    pages, tables = tmp_path / "pages", tmp_path / "tables"
    assert main([*map(str, folders), "--pages", str(pages), "--tables", str(tables)]) == 0
    return sorted([*pages.glob("*"), *tables.glob("*")])


def test_a_page_has_machine_versions_and_a_row_of_each_check(call: Path, tmp_path: Path) -> None:
    first = read(call / "rows.jsonl").about
    (page,) = merge(tmp_path, call)
    text = page.read_text()
    assert page.name == f"{first['date'][:10]}-gpu.md"
    assert text.startswith(f"# On a GPU, {first['date'][:10]}\n")
    assert f"torch {first['versions']['torch']}" in text and f"triton {first['versions']['triton']}" in text
    assert f"A (commit {first['commit'] or 'unknown'})" in text
    assert f"| {NAME} | ok | 2 launches, from 1, 33 rows on |" in text
    assert "- limits of this GPU: needs a GPU" in text
    assert "- 1 ok, 0 note, 0 FAIL, 1 not run" in text


def test_a_row_of_a_later_call_replaces_the_earlier_one(call: Path, tmp_path: Path) -> None:
    later = changed(call, tmp_path / "later", **{NAME: {"result": "FAIL", "detail": "a | b"}})
    (page,) = merge(tmp_path, call, later)
    text = page.read_text()
    assert f"| {NAME} | FAIL | a \\| b |" in text
    assert text.count(NAME) == 1


def test_a_row_that_was_not_run_replaces_nothing(call: Path, tmp_path: Path) -> None:
    later = changed(call, tmp_path / "later", **{NAME: {"result": "not run", "detail": "unfinished"}})
    found = {row["name"]: row["result"] for row in merged([read(call / "rows.jsonl"), read(later / "rows.jsonl")])}
    assert found[NAME] == "ok"
    assert found["limits of this GPU"] == "not run"


@pytest.mark.parametrize("content", [None, "", "{}\n", '{"index": 0, "name": "start"}\n'])
def test_a_folder_without_a_call_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path), "--pages", str(tmp_path / "pages")])
    assert ended.value.code == 2
    assert not (tmp_path / "pages").exists()


def test_tiles_of_a_gpu_are_written_as_a_table(call: Path, tmp_path: Path) -> None:
    entries = {"64,128,bfloat16,none": [{"rows": 1, "tile": [64, 16, 4, 6], "split": True, "us": 2.5}]}
    data = {"card": "sm_90-132", "torch": "2.11", "triton": "3.6", "tiles": entries}
    on_cpu = changed(call, tmp_path / "cpu", **{NAME: {"data": data}})
    assert len(merge(tmp_path, on_cpu)) == 1, "tiles of the interpreter are no choice"
    on_gpu = changed(on_cpu, tmp_path / "gpu")
    lines = (on_gpu / "rows.jsonl").read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {"device": "cuda"})
    (on_gpu / "rows.jsonl").write_text("\n".join(lines))
    _, table = merge(tmp_path, on_gpu)
    assert table.name == "sm_90-132.json"
    found = json.loads(table.read_text())
    assert found["card"] == data["card"]
    assert found["products"]["64,128,bfloat16,none"][0]["rows"] == 1
