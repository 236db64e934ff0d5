"""Triton's cache directory: the default if it is writable, else a temporary one."""

import os
from pathlib import Path

import pytest
from triton import knobs

from services.machine import files
from services.worker.errors import ModelError
from services.worker.triton_cache import use_writable_cache
from tests.small_disk import fill, small_disk


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


def test_a_full_disk_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file can still be made on it."""
    with small_disk(tmp_path / "disk") as disk:
        (disk / "cache").mkdir()
        fill(disk)
        monkeypatch.setenv("TRITON_CACHE_DIR", str(disk / "cache"))
        monkeypatch.setattr("tempfile.tempdir", str(disk))
        monkeypatch.setattr(files, "SHARED_MEMORY", tmp_path)
        use_writable_cache()
        assert Path(os.environ["TRITON_CACHE_DIR"]).parent == tmp_path
        monkeypatch.setenv("TRITON_CACHE_DIR", str(disk / "cache"))
        monkeypatch.setattr(files, "SHARED_MEMORY", disk)
        with pytest.raises(ModelError, match="no directory for Triton's compiled kernels can be written"):
            use_writable_cache()
