"""An environment for processes in which no package can be imported but those that docs/gpu.md names.

A sitecustomize module in PYTHONPATH removes all other installed distributions from imports and from importlib.metadata,
in each Python process of that environment. The compiled CPU kernels are not there, either.
"""

import os
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement

from loadtest.gpu.wheels import CARRIED, THERE, normal

ROOT = Path(__file__).parents[2]
OWN = "tandem-llm"  # its modules are those of the repository
SITECUSTOMIZE = """
import re, sys
from importlib.machinery import PathFinder
REFUSED, ALLOWED = {refused!r}, {allowed!r}
class Some(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED or name.startswith("kernels.cpu._"):
            return None
        return super().find_spec(name, path, target)
    @classmethod
    def find_distributions(cls, *args, **how):
        found = PathFinder.find_distributions(*args, **how)
        return (one for one in found if re.sub("[-_.]+", "-", one.metadata["Name"]).lower() in ALLOWED)
sys.meta_path[sys.meta_path.index(PathFinder)] = Some
"""


def with_dependencies(names: tuple[str, ...]) -> set[str]:
    """Returns the normalized names of the installed distributions `names` and of all that they depend on here."""
    found: set[str] = set()
    waiting = [normal(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            needed = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:  # for another system or Python
            continue
        found.add(name)
        waiting += [normal(one.name) for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment of such processes, whose sitecustomize is written into `folder`.

    THERE come with their dependencies, CARRIED without.
    """
    allowed = with_dependencies(THERE) | {normal(name) for name in CARRIED}
    refused = {
        module
        for module, names in packages_distributions().items()
        if not {normal(name) for name in names} & {*allowed, OWN}
    }
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE.format(refused=sorted(refused), allowed=sorted(allowed)))
    kept = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "TRITON_CACHE_DIR")}
    return {**kept, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "TRITON_CACHE_DIR": str(folder / "cache")}
