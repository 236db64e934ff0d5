"""Describes the machine of a run: its device, and the versions of the packages that decide kernels and figures."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

PACKAGES = ("torch", "triton", "transformers")


def about(device: torch.device) -> dict[str, Any]:
    """Returns "device" ("cuda" or "cpu"), "machine" (the GPU's name, capability, processors and memory, or the CPU's
    architecture), and "versions" by name; null for a package that is missing."""
    name = platform.machine()
    versions = {package: version_of(package) for package in PACKAGES}
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        name = f"{found.name} (sm_{found.major}{found.minor}, {found.multi_processor_count} processors,"
        name += f" {found.total_memory >> 20} MiB)"
        versions["CUDA"] = torch.version.cuda
    return {"device": device.type, "machine": name, "versions": versions | {"python": platform.python_version()}}


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def as_text(about: dict[str, Any]) -> str:
    """Returns the machine and the versions of about() as one line."""
    versions = (f"{package} {number}" for package, number in about["versions"].items() if number is not None)
    return ", ".join([about["machine"], *versions])
