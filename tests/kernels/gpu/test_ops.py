"""What TritonOps quantise, and what they call themselves."""

import pytest
import torch

from kernels.gpu import library
from kernels.gpu.card import H100
from kernels.gpu.matrix import EightBitMatrix, TritonMatrix
from kernels.gpu.ops import TritonOps
from kernels.torch_matrix import TorchMatrix
from tests.kernels.cases import randn
from tests.kernels.gpu_cases import DEVICE


@pytest.mark.parametrize("quantization", [None, "int8", "fp8"])
def test_matrices_and_experts_are_quantised_unless_they_must_be_exact(quantization: str | None) -> None:
    ops, weight = TritonOps(quantization=quantization), randn(DEVICE, torch.bfloat16, 3, 70, 32)
    assert isinstance(ops.matrix(weight[0]), EightBitMatrix if quantization else TritonMatrix)
    assert isinstance(ops.matrix(weight[0], exact=True), TritonMatrix)
    experts = ops.experts([[each[:40], each[40:]] for each in weight])
    assert len(experts) == 3 and experts.weight.shape == (3, 70, 32)
    if quantization is None:
        assert experts.scales is None and torch.equal(experts.weight, weight)
    else:
        assert experts.scales is not None and experts.weight.dtype.itemsize == 1
        restored = experts.weight.float() * experts.scales[..., None]
        assert (restored - weight.float()).abs().max() < 0.2
    assert ops.name == "+".join(filter(None, ["triton", quantization, library.used_by(H100)]))


def test_without_batch_invariance_products_are_those_of_torch() -> None:
    ops = TritonOps(batch_invariant=False)
    assert isinstance(ops.matrix(torch.zeros(4, 4)), TorchMatrix) and ops.name == "triton+torch"
