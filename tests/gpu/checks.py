"""The list of checks, in the order of the table: what all else is built on comes first."""

import platform
from importlib.metadata import version

import torch

from tests.gpu import attention, determinism, kernels, parity, pointwise, products, sampling, steps, worker
from tests.gpu.table import Check


def all_checks(device: torch.device) -> list[Check]:
    checks = [Check("machine", lambda: machine(device)), *kernels.checks(device), *sampling.checks(device)]
    checks += [*parity.checks(device), *worker.checks(device), *determinism.checks(device)]
    if device.type == "cuda":
        checks += [
            *products.checks(device),
            *pointwise.checks(device),
            *attention.checks(device),
            *steps.checks(device),
        ]
    return checks


def machine(device: torch.device) -> str:
    name = platform.machine()
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        free, total = torch.cuda.mem_get_info(device)
        name = f"{torch.cuda.get_device_name(device)} (sm_{major}{minor}, {free >> 20} of {total >> 20} MiB free)"
    parts = [f"{package} {version(package)}" for package in ("torch", "triton", "transformers")]
    return ", ".join([name, *parts, f"python {platform.python_version()}"])
