"""A disk that is full or read-only is told from a path that cannot be used."""

import errno
from pathlib import Path

import pytest

from services.machine.disk import check_writable, is_disk_error
from tests.small_disk import fill, small_disk


def test_a_directory_with_room_is_writable_and_stays_empty(tmp_path: Path) -> None:
    check_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_disk_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        check_writable(disk)
        fill(disk)
        with pytest.raises(OSError, match="No space left") as found:
            check_writable(disk)
    assert is_disk_error(found.value)


def test_a_missing_directory_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as found:
        check_writable(tmp_path / "none")
    assert not is_disk_error(found.value)
    assert is_disk_error(OSError(errno.EROFS, "")) and not is_disk_error(PermissionError(errno.EACCES, ""))
