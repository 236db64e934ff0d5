"""Which kernels a model runs on: compiled ones on a CPU, Triton on a GPU, torch's products where speed goes first."""

import torch

from kernels.cpu.library import load
from kernels.cpu.ops import CpuOps
from kernels.interface import Ops
from kernels.torch_ops import TorchOps


def ops_for(device: torch.device, batch_invariant: bool, num_threads: int, int8: bool = False) -> Ops:
    """`num_threads`: of the compiled kernels, which alone have weights of eight bits (`int8`).

    Raises KernelsMissing where the compiled kernels are needed and were not built.
    """
    assert not int8 or (device.type == "cpu" and batch_invariant)
    if device.type == "cuda":
        from kernels.triton_ops import TritonOps  # a machine without a GPU need not have Triton

        return TritonOps(batch_invariant)
    return CpuOps(load(), num_threads, int8) if batch_invariant else TorchOps()
