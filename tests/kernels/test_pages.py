"""Large host tensors commit memory at the first write and return it when they are freed."""

import mmap
from pathlib import Path

import pytest
import torch

from kernels import pages


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture(params=[pages.HUGE_ADVICE, None, -1], ids=["huge", "no madvise", "refused"])
def advice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With huge pages, without MADV_HUGEPAGE (not Linux), and with a kernel that rejects it."""
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


def test_huge_pages_are_requested_on_linux() -> None:
    assert pages.HUGE_ADVICE == mmap.MADV_HUGEPAGE


@pytest.mark.usefixtures("advice")
def test_pages_are_committed_at_the_first_write_and_freed_with_the_tensor() -> None:
    size = 2**30
    before = resident_bytes()
    made = pages.zeros((size,), torch.uint8)
    assert resident_bytes() - before < size // 8
    made[: size // 4] = 1
    assert size // 4 <= resident_bytes() - before + 2**20 < size // 2
    del made
    assert resident_bytes() - before < size // 8


def test_more_than_the_address_space_is_an_oserror() -> None:
    with pytest.raises(OSError):
        pages.zeros((2**60,), torch.uint8)
