"""Large tensors cost memory when they are written, not when they are made, and give it back."""

import mmap
from pathlib import Path

import pytest
import torch

from kernels import pages


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture(params=[pages.HUGE_ADVICE, None, -1], ids=["huge", "none to ask for", "refused"])
def advice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as on another system, and with a kernel that knows no huge pages."""
    monkeypatch.setattr(pages, "HUGE_ADVICE", request.param)


@pytest.mark.usefixtures("advice")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3,), (1, 2**20 + 1), (7, 3, 2**20)], ids=str)
def test_zeros_of_any_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made = pages.zeros(shape, dtype)
    assert made.shape == shape and made.dtype == dtype and made.is_contiguous()
    assert made.data_ptr() % 64 == 0 and not made.any()
    made.fill_(1)
    assert (made == 1).all()


def test_linux_is_asked_for_huge_pages() -> None:
    assert pages.HUGE_ADVICE == mmap.MADV_HUGEPAGE


@pytest.mark.usefixtures("advice")
def test_pages_are_taken_when_they_are_written_and_given_back() -> None:
    size = 2**30
    before = resident_bytes()
    made = pages.zeros((size,), torch.uint8)
    assert resident_bytes() - before < size // 8
    made[: size // 4] = 1
    assert size // 4 <= resident_bytes() - before + 2**20 < size // 2
    del made
    assert resident_bytes() - before < size // 8


def test_more_than_there_can_be_is_an_oserror() -> None:
    with pytest.raises(OSError):
        pages.zeros((2**60,), torch.uint8)
