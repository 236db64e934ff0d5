"""A weight whose products are torch's."""

import torch
import torch.nn.functional as F
from torch import Tensor


class TorchMatrix:
    """oneDNN or cuBLAS: the bits of a row may depend on how many rows there are."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def product(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return F.linear(x, self._weight).to(dtype or x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._weight)
