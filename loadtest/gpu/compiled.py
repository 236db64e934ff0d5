"""`python -m loadtest.gpu.compiled [TEXT]`: compiles every Triton kernel for NVIDIA GPUs, on a machine without one.

With TEXT, only the checks with TEXT in their name. Triton compiles for an absent GPU and launches nothing. That checks
types, constants and shared memory, which the interpreter does not. It also checks the instructions: products must use
the same for any number of rows, no wgmma may wait for the one before, and attention that walks all segments must load
its next tile while it computes one. Register spills are reported. Needs the ptxas and cuobjdump that come with Triton.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels.gpu import activation, bitmask, matrix, norm, sample, soft_cap
from kernels.gpu.attention_tiling import WALKING_STAGES
from kernels.gpu.card import H100, Card
from kernels.gpu.matrix import matrix_of
from kernels.gpu.ops import TritonOps
from kernels.program import ACTIVATIONS
from loadtest.gpu import table
from loadtest.gpu.table import Check
from services.grammar.matcher import mask_words
from tests.kernels.attention_cases import attention_case
from tests.kernels.cases import randn, rope_case, vectors
from tests.kernels.draw_cases import draws_of
from tests.kernels.expert_cases import expert_case

CPU = torch.device("cpu")
# By compute capability: A100, A10, H100.
CARDS = {80: Card(80, 108, 163 * 1024), 86: Card(86, 72, 99 * 1024), 90: H100}
FP8_CAPABILITY = 89
MOST_ROWS = 8192  # of a product
OTHERS = 43  # kernels that launch_all launches
# The matrix instructions for 16-bit types, without the part that encodes the number of rows.
INSTRUCTIONS = {
    80: {"mma.sync.aligned.m16n8k16"},
    86: {"mma.sync.aligned.m16n8k16"},
    90: {"wgmma.mma_async.sync.aligned.m64k16"},
}


class AbsentGpu:
    """A Triton driver for a GPU of the compute capability `capability` (80: sm_80) that this machine does not have."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._target.arch * 100  # the cache of compiled kernels is keyed by device

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(compiled: list[Any]) -> None:
    """Makes every launch of a Triton kernel in this process only compile the kernel and append it to `compiled`."""

    def getitem(self: Any, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            compiled.append(self.run(*args, grid=grid, warmup=True, **kwargs))

        return launch

    JITFunction.__getitem__ = getitem


def launch_products(dtype: torch.dtype, quantization: str | None) -> int:
    """Multiplies by two weights, by every launch that up to MOST_ROWS rows take; by the first one also with a bias.

    Returns the number of kernels for it. The k inputs of the first weight are divided into segments: with few rows, a
    second kernel adds their partial sums.
    """
    count = 0
    for n in (1024, 16384):
        weight = matrix_of([randn(CPU, dtype, n, 1024)], quantization)
        classes = weight.row_classes(MOST_ROWS)
        for rows, bias in [*((rows, None) for rows in classes), (classes[0], vectors(CPU, n))]:
            weight.product(randn(CPU, dtype, rows, 1024), bias=bias)
            count += 1 + (weight.launches.at(rows).split and weight.launches.schedule.segments > 1)
    return count


def instructions(kernel: Any) -> set[str]:
    """Returns the names of the matrix instructions in a kernel's PTX. Names of wgmma are without n, which encodes the
    number of rows."""
    found = re.findall(r"\b(?:wgmma\.mma_async|mma)\.sync\.aligned\.m\d+n\d+k\d+", kernel.asm["ptx"])
    return {re.sub(r"n\d+", "", name) if name.startswith("wgmma") else name for name in found}


def launch_all(dtype: torch.dtype, head_dim: int) -> None:
    x, weight = randn(CPU, dtype, 3, 1024), vectors(CPU, 1024)
    norm.norm(x, weight, None, 1e-6, False)
    norm.norm(x, weight, weight, 1e-6, True)
    norm.norm(x.view(3, 8, 128), weight.view(8, 128), None, 1e-6, True)
    norm.norm(x[:, :512].unflatten(1, (1, 512)), weight[:512], None, 1e-6, False)
    norm.add_norm(x, x, 1.0, weight, None, 1e-6, False)
    norm.add_norm(x, x, 0.22, weight, weight, 1e-6, True)
    for kind in ACTIVATIONS:
        activation.activate(x, kind, True)
        activation.activate(x, kind, False)
    matrix_of([x[:, :17]]).product(x[:, :17], torch.float32, weight[:3].contiguous())
    for with_norm in (True, False):
        for turned, own_tables in ((1.0, False), (0.5, True), (0.0, False)):
            case = rope_case(CPU, dtype, 3, 16, 8, head_dim, 16, with_norm, turned=turned, own_tables=own_tables)
            case.triton(case.caches)
    # Split decode, a prompt chunk, decode by one program. Block sizes: a divisor of the tile, a multiple, and neither.
    # The last two are Gemma 2's and gpt-oss's, in a window.
    for lens, kv_heads, group, block_size, *traits in (
        ([(1, 300), (1, 3)], 1, 3, 24, 9),
        ([(40, 300), (1, 3)], 8, 2, 16, 0),
        ([(1, 3)], 8, 2, 16, 0),
        ([(1, 300)], 8, 2, 128, 0),
        ([(40, 300), (1, 3)], 8, 2, 16, 9, 1.5),
        ([(1, 300)], 8, 2, 16, 9, 0.0, True),
    ):
        attention_case(CPU, dtype, lens, kv_heads, group, head_dim, block_size, 0, *traits).triton()
    soft_cap.soft_cap(x.float(), 30.0)
    # gpt-oss's experts, then GLM-4's, of which none has rows enough for a larger tile.
    for tokens, more in (
        (3, {"with_bias": True, "kind": "clamped_silu"}),
        (400, {"sigmoid": True, "groups": 4, "kept_groups": 2, "adds": True}),
    ):
        experts = expert_case(CPU, dtype, tokens, 8, 2, 1024, 256, **more)
        experts.result(TritonOps())


def products_and_shuffles(kernel: Any) -> list[str]:
    """Returns each matrix instruction and shfl.bfly in a kernel's PTX, sorted: those on which a row's bits depend. Sums
    and maxima across threads use shfl.bfly; shfl.idx only changes a layout and is left out."""
    return sorted(re.findall(r"(?:wgmma\.mma_async|mma|shfl(?=\.sync\.bfly))\.sync\.[\w.]+", kernel.asm["ptx"]))


def loads_ahead(kernel: Any) -> bool:
    """Returns whether a kernel goes on with a tile while a later one is loaded: a wait leaves some loads pending."""
    return any(int(pending) > 0 for pending in re.findall(r"cp\.async\.wait_group\s+(\d+)", kernel.asm["ptx"]))


def spilled(kernel: Any) -> int:
    """Returns the bytes of a thread's stack, which holds spilled registers; 0: none are spilled."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return max(int(size) for size in re.findall(r"\bSTACK:(\d+)", usage))


def is_serialized(kernel: Any) -> bool:
    """Returns whether ptxas reports that it serialized the kernel's wgmma: each waits for the one before."""
    if "wgmma" not in kernel.asm["ptx"]:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(kernel.asm["ptx"])
        command = [knobs.nvidia.ptxas.path, "-v", "--gpu-name", "sm_90a", source, "-o", source.with_suffix(".cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return "serialized" in done.stdout + done.stderr


def resources(compiled: list[Any], capability: int) -> str:
    """Returns one line: the number of kernels, their most shared memory, and register spills. Raises AssertionError for
    more shared memory than the card has, or serialized wgmma."""
    shared, limit = max(kernel.metadata.shared for kernel in compiled), CARDS[capability].shared_bytes
    assert shared <= limit, f"{shared} bytes of shared memory, at most {limit}"
    assert not any(map(is_serialized, compiled)), "ptxas serialized wgmma"
    spills = [f"{size} of {kernel.name}" for kernel in compiled if (size := spilled(kernel))]
    spilling = f"spills in bytes: {', '.join(spills)}" if spills else "no spills"
    return f"{len(compiled)} kernels, at most {shared} bytes of shared memory, {spilling}"


def checks(compiled: list[Any]) -> list[Check]:
    def check(capability: int, name: str, dtype: torch.dtype, head_dim: int) -> Check:
        def run() -> str:
            compiled.clear()
            driver.set_active(AbsentGpu(capability))
            vars(matrix)["card_of"] = lambda device: CARDS[capability]
            quantizations = [None, "int8"] + ["fp8"] * (capability >= FP8_CAPABILITY)
            products = sum(launch_products(dtype, quantization) for quantization in quantizations)
            used = {"".join(instructions(kernel)) for kernel in compiled if "linear" in kernel.name}
            assert used == ({""} if dtype == torch.float32 else INSTRUCTIONS[capability]), f"products use {used}"
            launch_all(dtype, head_dim)
            expected = OTHERS + products
            assert len(compiled) == expected, f"{len(compiled)} kernels were compiled, not {expected}"
            attending = [kernel for kernel in compiled if kernel.name == "_attention_kernel"]
            used_there = [products_and_shuffles(kernel) for kernel in attending]
            assert len(used_there) == 6 and all(each == used_there[0] for each in used_there), (
                "attention kernels use different instructions"
            )
            if dtype != torch.float32 and head_dim <= 128:
                walking = [kernel for kernel in attending if kernel.metadata.num_stages == WALKING_STAGES]
                assert walking and all(map(loads_ahead, walking)), "attention waits for each of its loads"
            return resources(compiled, capability)

        return Check(f"compiled for sm_{capability}, {name}, head size {head_dim}", run)

    kinds = [
        ("bf16", torch.bfloat16, 128), ("bf16", torch.bfloat16, 256), ("bf16", torch.bfloat16, 80),
        ("float16", torch.float16, 64), ("float32", torch.float32, 24), ("float32", torch.float32, 256),
    ]  # fmt: skip

    def check_draw(capability: int, vocab: int) -> Check:
        def run() -> str:
            compiled.clear()
            driver.set_active(AbsentGpu(capability))
            logits = randn(CPU, torch.float32, 3, vocab)
            sample.draw(logits, logits, draws_of([(0.6, 0.95, 0.1, 20)] * 3))
            masks = torch.zeros(1, mask_words(vocab), dtype=torch.int32)
            bitmask.apply_bitmask(logits, masks, torch.zeros(1, dtype=torch.int64))
            assert len(compiled) == 5, f"{len(compiled)} kernels were compiled, not 5"
            return resources(compiled, capability)

        return Check(f"compiled for sm_{capability}, draw from {vocab}, with a bitmask", run)

    return [
        *(check(capability, *kind) for capability in CARDS for kind in kinds),
        *(check_draw(capability, vocab) for capability in CARDS for vocab in (151_936, 1)),
    ]


def main(only: str = "") -> int:
    compiled: list[Any] = []
    compile_only(compiled)
    print(table.HEADER, flush=True)
    failed = 0
    for check in (check for check in checks(compiled) if only in check.name):
        row = table.run_check(check)
        print(row, flush=True)
        failed += row.result == "FAIL"
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
