"""Every requirement of pyproject.toml is a range as docs/decisions/0026 demands; constraints.txt is complete."""

from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.versions.__main__ import HEADER
from tests.versions.requirements import CONSTRAINTS, lowest, normalize, parse, pinned, requirements

EXACT = {"torch", "triton", "grpcio-tools"}
PINNED = pinned()


def next_breaking(version: Version) -> Version:
    """Returns the next major version, or the next minor version of 0.x."""
    return Version(f"{version.major + 1}") if version.major else Version(f"0.{version.minor + 1}")


def test_every_requirement_is_a_range_up_to_the_next_breaking_version() -> None:
    for one in requirements():
        if one.name in EXACT:
            assert one.upper is None, one.text
        else:
            assert one.upper is not None, one.text
            assert Version(one.upper) == next_breaking(Version(PINNED[one.name])), one.text
            assert Version(one.lower) <= Version(PINNED[one.name]), one.text


def test_the_constraints_satisfy_every_requirement() -> None:
    for one in requirements():
        assert Requirement(one.text).specifier.contains(PINNED[one.name]), one.text


def test_the_constraints_cover_what_the_pinned_packages_require() -> None:
    """Checks packages installed in their pinned version: all of .venv, fewer of the sets lowest and newest."""
    for name, version in PINNED.items():
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if found.version.partition("+")[0] != version:
            continue
        needed = [Requirement(text) for text in found.requires or []]
        names = {normalize(one.name) for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})}
        assert names <= PINNED.keys(), f"{name} {version} requires {names - PINNED.keys()}"


def test_the_constraints_are_exact_and_sorted() -> None:
    header, *lines = CONSTRAINTS.read_text().splitlines()
    assert header == HEADER
    assert lines == sorted(lines, key=str.lower)
    assert len(PINNED) == len(lines)
    for line in lines:
        (specifier,) = Requirement(line).specifier
        assert specifier.operator == "==" and Version(specifier.version).local is None, line


def test_the_lowest_set_is_the_lower_bounds() -> None:
    constraints = [Requirement(line) for line in lowest()]
    ranges = {one.name: one for one in requirements()}
    assert {normalize(one.name) for one in constraints} == ranges.keys()
    for one in constraints:
        assert str(one.specifier) == f"=={ranges[one.name].lower}"
        assert (one.marker is None) == (not ranges[one.name].marker)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("uvicorn[standard]>=0.38.0,<0.55", "uvicorn 0.38.0 0.55 "),
        ("PyYAML_x>=6,<7", "pyyaml-x 6 7 "),
        ("triton==3.7.1; sys_platform == 'linux'", "triton 3.7.1 None sys_platform == 'linux'"),
    ],
)
def test_a_requirement_is_read(text: str, line: str) -> None:
    one = parse(text)
    assert f"{one.name} {one.lower} {one.upper} {one.marker}" == line


@pytest.mark.parametrize("text", ["numpy", "numpy>=2", "numpy<3", "numpy>=2,<3,!=2.1", "numpy~=2.0", "numpy>2,<3"])
def test_a_requirement_without_both_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        parse(text)
