"""The list of checks in the order of the table. The time limit may end the run, so the most important come first:
correctness of kernels and worker, then times of whole steps, then times of single kernels."""

import functools
import platform
from dataclasses import replace
from importlib.metadata import version

import torch

from loadtest.gpu import (
    attention,
    cublas,
    determinism,
    grammars,
    kernels,
    limits,
    parity,
    pointwise,
    products,
    sampling,
    stages,
    steps,
    tiles,
    worker,
)
from loadtest.gpu.engines import release
from loadtest.gpu.table import Check


def all_checks(device: torch.device) -> list[Check]:
    checks = [Check("machine", lambda: machine(device), alone=False), *kernels.checks(device), *sampling.checks(device)]
    checks += [*parity.checks(device), *determinism.checks(device), *worker.checks(device), *grammars.checks(device)]
    if device.type != "cuda":  # nothing is timed, and caches are small
        return [replace(check, alone=False) for check in checks]
    counts = (1, 32, 256)
    checks += [*limits.checks(device), *steps.checks(device, ["0.6B"], counts, True), *steps.compared(device)]
    checks += [*steps.checks(device, ["8B"], counts, True), *steps.checks(device, ["0.6B", "8B"], counts, False)]
    single = [*products.checks(device), *pointwise.checks(device), *attention.checks(device)]
    checks += [*cublas.checks(device), *stages.checks(device), *tiles.checks(device)]
    return checks + [Check(check.name, functools.partial(with_all_memory, check)) for check in single]


def with_all_memory(check: Check) -> str:
    """Runs `check` after the memory of the held engine (engines.py) is released. Returns the check's detail."""
    release()
    return check.run()


def machine(device: torch.device) -> str:
    name = platform.machine()
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        free, total = torch.cuda.mem_get_info(device)
        name = f"{torch.cuda.get_device_name(device)} (sm_{major}{minor}, {free >> 20} of {total >> 20} MiB free)"
    parts = [f"{package} {version(package)}" for package in ("torch", "triton", "transformers")]
    return ", ".join([name, *parts, f"python {platform.python_version()}"])
