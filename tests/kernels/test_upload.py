"""Weights are copied to the device completely, in order and converted, for any division into pieces."""

from collections.abc import Sequence

import pytest
import torch

from kernels import upload


@pytest.mark.parametrize("rows", [(1,), (5, 3), (100, 1, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_arrive(rows: Sequence[int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PIECE_BYTES", 256)  # a few rows
    parts = [torch.randn(count, 17) for count in rows]
    target = torch.full((sum(rows), 17), float("nan"), dtype=dtype)
    upload.fill(target, parts)
    assert torch.equal(target, torch.cat(parts).to(dtype))


def test_an_error_in_a_thread_is_raised() -> None:
    with pytest.raises(RuntimeError):
        upload.fill(torch.zeros(4, 3), [torch.zeros(4, 2)])
