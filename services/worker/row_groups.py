"""Splits the rows of a step into groups, which bounds the memory of what works on copies of logits."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

GROUP_ELEMENTS = 2**21  # rows of a group times its width
GROUP_BYTES = 40  # temporaries per element of a group

Longs = npt.NDArray[np.int64]


def group_size(width: int) -> int:
    """Returns how many rows are processed at once; at least 1. `width`: the most elements of a row."""
    return max(1, GROUP_ELEMENTS // width)


def groups(indices: Longs, width: int) -> Iterator[Longs]:
    """Yields consecutive parts of `indices`, each of at most group_size(width)."""
    size = group_size(width)
    return (indices[begin : begin + size] for begin in range(0, len(indices), size))
