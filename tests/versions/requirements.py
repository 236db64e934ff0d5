"""Parses the requirements of pyproject.toml and the lines of constraints.txt. Imports only the standard library."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT, CONSTRAINTS = ROOT / "pyproject.toml", ROOT / "constraints.txt"
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,-]+\])?(?P<bounds>[^;]*)(;(?P<marker>.*))?")


@dataclass(frozen=True)
class Requirement:
    """One line of pyproject.toml. `lower` is inclusive; `upper` is exclusive and None for an exact version."""

    text: str
    name: str  # normalized
    lower: str
    upper: str | None
    marker: str


def normalize(name: str) -> str:
    """Returns the name by which indexes know a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(text: str) -> Requirement:
    """Returns the requirement that `text` is. Raises ValueError for anything but `name==VERSION` and
    `name>=LOWER,<UPPER`."""
    found = _REQUIREMENT.fullmatch(text)
    bounds = re.fullmatch(r"==([\w.]+)|>=([\w.]+),<([\w.]+)", found["bounds"].strip()) if found else None
    if found is None or bounds is None:
        raise ValueError(f"{text!r} is neither name==VERSION nor name>=LOWER,<UPPER")
    exact, lower, upper = bounds.groups()
    return Requirement(text, normalize(found["name"]), exact or lower, upper, (found["marker"] or "").strip())


def requirements() -> list[Requirement]:
    """Returns the requirements of build, base and every extra, without those that only name other extras."""
    content = tomllib.loads(PYPROJECT.read_text())
    project = content["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    texts = [*content["build-system"]["requires"], *project["dependencies"], *extras]
    return [parse(text) for text in dict.fromkeys(texts) if not text.startswith(f"{project['name']}[")]


def lowest() -> list[str]:
    """Returns constraints that allow the lower bound of every requirement and nothing else, sorted."""
    return sorted(f"{one.name}=={one.lower}{'; ' + one.marker if one.marker else ''}" for one in requirements())


def pinned() -> dict[str, str]:
    """Returns the versions of constraints.txt by normalized name."""
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    return {normalize(name): version for name, _, version in (line.partition("==") for line in lines)}
