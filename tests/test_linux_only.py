"""Linux-only interfaces are used in one place of each package, so a port to another system changes only that place."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWNERS = {
    "services": ["services/machine/"],
    "engine_core": [],
    "kernels": ["kernels/pages.py", "kernels/cpu/native/has_amx.h", "kernels/cpu/native/pool.h"],
    "loadtest": ["loadtest/serving/processes.py", "loadtest/studies/"],
    "demo": [],
}
LINUX_ONLY = re.compile(
    r"/proc\b|/sys/|/dev/shm|pidfd|sched_[gs]etaffinity|CLOCK_BOOTTIME|prctl|MADV|eventfd|memfd|signalfd|epoll|inotify"
    r"|SO_PEERCRED|SO_REUSEPORT|TCP_USER_TIMEOUT|__linux__|sys\.platform"
)


def linux_only(folder: str) -> dict[str, list[str]]:
    """Returns the Linux-only names that each file of a package contains, by path."""
    files = [file for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".h", ".cpp")]
    assert files
    found = {str(file.relative_to(ROOT)): LINUX_ONLY.findall(file.read_text()) for file in files}
    return {file: names for file, names in found.items() if names}


@pytest.mark.parametrize(("folder", "owners"), OWNERS.items(), ids=list(OWNERS))
def test_only_the_owner_uses_linux_only_interfaces(folder: str, owners: list[str]) -> None:
    found = linux_only(folder)
    assert {file: names for file, names in found.items() if not file.startswith(tuple(owners))} == {}
    assert all(any(file.startswith(owner) for file in found) for owner in owners), "an owner that uses none"
