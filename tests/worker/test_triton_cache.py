"""Triton's cache lies where it can be written to, and stays where it is if that is so."""

import os
from pathlib import Path

import pytest
from triton import knobs

from services.worker.triton_cache import use_writable_cache


def test_a_home_that_can_be_written_to_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    use_writable_cache()
    assert "TRITON_CACHE_DIR" not in os.environ
    assert Path(knobs.cache.dir) == tmp_path / ".triton" / "cache" and (tmp_path / ".triton" / "cache").is_dir()


@pytest.mark.parametrize("name", ["TRITON_CACHE_DIR", "TRITON_HOME"])
def test_another_is_made_where_it_cannot_be_written_to(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # so that it is as before afterwards
    monkeypatch.setenv(name, "/proc/none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    use_writable_cache()
    folder = Path(knobs.cache.dir)
    assert folder.parent == tmp_path and os.access(folder, os.W_OK)
    assert "set TRITON_CACHE_DIR to keep compiled kernels" in caplog.text
