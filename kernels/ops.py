"""Which kernels a model runs on: compiled ones on a CPU, Triton on a GPU, torch's products where speed goes first."""

import torch

from kernels.cpu.library import load
from kernels.cpu.ops import CpuOps
from kernels.interface import Ops
from kernels.torch_ops import TorchOps


def ops_for(device: torch.device, batch_invariant: bool, num_threads: int) -> Ops:
    """`num_threads`: of the compiled kernels. Raises KernelsMissing where they are needed and were not built."""
    if device.type == "cuda":
        from kernels.triton_ops import TritonOps  # a machine without a GPU need not have Triton

        return TritonOps(batch_invariant)
    return CpuOps(load(), num_threads) if batch_invariant else TorchOps()
