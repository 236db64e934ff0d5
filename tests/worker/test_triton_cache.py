"""Triton's cache directory: the default if it is writable, else a temporary one."""

import os
from pathlib import Path

import pytest
from triton import knobs

from services.worker.triton_cache import use_writable_cache


def test_a_writable_default_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    use_writable_cache()
    assert "TRITON_CACHE_DIR" not in os.environ
    assert Path(knobs.cache.dir) == tmp_path / ".triton" / "cache" and (tmp_path / ".triton" / "cache").is_dir()


@pytest.mark.parametrize("name", ["TRITON_CACHE_DIR", "TRITON_HOME"])
def test_a_default_that_is_not_writable_is_replaced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # monkeypatch restores it afterwards
    monkeypatch.setenv(name, "/proc/none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    use_writable_cache()
    folder = Path(knobs.cache.dir)
    assert folder.parent == tmp_path and os.access(folder, os.W_OK)
    assert "set TRITON_CACHE_DIR to keep compiled kernels" in caplog.text
