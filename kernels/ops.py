"""Which kernels a model runs on: compiled ones on a CPU, Triton on a GPU, torch's products where speed goes first."""

import torch

from kernels.cpu.library import load
from kernels.cpu.ops import CpuOps
from kernels.interface import Ops
from kernels.torch_ops import TorchOps


def ops_for(device: torch.device, batch_invariant: bool, num_threads: int, quantization: str | None = None) -> Ops:
    """`num_threads`: of the compiled kernels. `quantization`: int8, or on CUDA fp8, of batch-invariant kernels only.

    Raises KernelsMissing where the compiled kernels are needed and were not built.
    """
    assert quantization is None or batch_invariant
    if device.type == "cuda":
        from kernels.gpu.ops import TritonOps  # a machine without a GPU need not have Triton

        return TritonOps(batch_invariant, quantization)
    assert quantization in (None, "int8")
    return CpuOps(load(), num_threads, quantization == "int8") if batch_invariant else TorchOps()
