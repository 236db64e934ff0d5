"""`python -m tests.gpu.compiled`: every kernel compiles for NVIDIA GPUs, on a machine without one.

Triton is told of a GPU that is not there, and stops each launch before it starts. So types, constants and shared memory
are those of a GPU, which the interpreter on a CPU knows nothing of. Needs the ptxas that comes with Triton.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels import kv_write, linear, norm_rope
from tests.gpu import table
from tests.gpu.table import Check
from tests.kernels.cases import attention_case, randn

CPU = torch.device("cpu")
CAPABILITIES = (80, 90)
SHARED_BYTES = 99 * 1024  # what one program may use on the least of the GPUs from sm_80 on


class AbsentGpu:
    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._target.arch * 100  # compiled kernels are kept by device

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(used: list[int]) -> None:
    """From here on, launching a kernel compiles it and notes its shared memory in `used`."""

    def getitem(self: Any, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            used.append(self.run(*args, grid=grid, warmup=True, **kwargs).metadata.shared)

        return launch

    JITFunction.__getitem__ = getitem


def launch_all(dtype: torch.dtype, head_dim: int) -> None:
    x = randn(CPU, dtype, 3, 1024)
    norm_rope.rms_norm(x, x[0], 1e-6)
    norm_rope.add_rms_norm(x, x, x[0], 1e-6)
    linear.TritonMatrix(x).product(x)
    linear.TritonMatrix(x[:, :17]).product(x[:, :17], torch.float32)
    heads = randn(CPU, dtype, 3, 8, head_dim)
    positions = torch.arange(3)
    norm_rope.norm_rope(heads, heads[0, 0], 1e-6, torch.zeros(9, head_dim), positions)
    norm_rope.norm_rope(heads, None, 1e-6, torch.zeros(9, head_dim), positions)
    caches = [torch.zeros(4, 16, 8, head_dim, dtype=dtype) for _ in range(2)]
    kv_write.write_kv(heads, heads, caches[0], caches[1], positions)
    for kv_heads, group, block_size, context in ((8, 2, 16, 100), (1, 3, 1, 0)):
        attention_case(CPU, dtype, [(4, context), (1, 3)], kv_heads, group, head_dim, block_size).triton()


def checks(used: list[int]) -> list[Check]:
    def check(capability: int, name: str, dtype: torch.dtype, head_dim: int) -> Check:
        def run() -> str:
            used.clear()
            driver.set_active(AbsentGpu(capability))
            launch_all(dtype, head_dim)
            assert len(used) == 9, f"{len(used)} kernels were compiled, not 9"
            assert max(used) <= SHARED_BYTES, f"{max(used)} bytes of shared memory"
            return f"{len(used)} kernels, at most {max(used)} bytes of shared memory"

        return Check(f"compiled for sm_{capability}, {name}, head size {head_dim}", run)

    kinds = [("bf16", torch.bfloat16, 128), ("float16", torch.float16, 64), ("float32", torch.float32, 24)]
    return [check(capability, *kind) for capability in CAPABILITIES for kind in kinds]


def main() -> int:
    used: list[int] = []
    compile_only(used)
    print(table.HEADER, flush=True)
    failed = 0
    for check in checks(used):
        row = table.run_check(check)
        print(row, flush=True)
        failed += row.result == "FAIL"
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
