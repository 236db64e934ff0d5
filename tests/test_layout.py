"""The tests of a module are in the file of its name: services/rpc/link.py has tests/rpc/test_link.py."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("engine_core", "kernels", "loadtest", "services")
FROM_LINES = 80  # smaller modules may be tested through their callers
WITHOUT = (
    "services/rpc/generated/",  # made by protoc
    "loadtest/gpu/",  # needs a GPU; tests/loadtest/test_gpu.py runs what a CPU can run of it
    "loadtest/studies/",  # single experiments, run by hand
)


def mirrored(module: Path) -> Path:
    """Returns the test file of a module; both relative to the repository's root."""
    parts = module.parts[1:] if module.parts[0] == "services" else module.parts
    return Path("tests", *parts[:-1], f"test_{module.name}")


def modules() -> list[Path]:
    """Returns every module with at least FROM_LINES lines."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    large = (path for path in found if len(path.read_text().splitlines()) >= FROM_LINES)
    return sorted(path.relative_to(ROOT) for path in large)


def test_large_modules_have_a_test_file_of_their_name() -> None:
    needed = [module for module in modules() if not module.as_posix().startswith(WITHOUT)]
    assert len(needed) > 50
    missing = [f"{module}: {mirrored(module)}" for module in needed if not (ROOT / mirrored(module)).exists()]
    assert not missing, "\n".join(missing)
