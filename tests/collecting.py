"""Collection of all tests in half the time: every process of pytest-xdist collects all of them.

pytest rewrites the asserts of a test file at its import and keeps the result in __pycache__. The processes import the
files in different orders, so that each finds what the others have rewritten. Without PYTHONDONTWRITEBYTECODE only:
`make test` unsets it.
"""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cores import COUNT, INDEX


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collects without a search for garbage; the items, which live to the end, are left out of later searches."""
    gc.disable()
    try:
        if INDEX and not sys.dont_write_bytecode:
            import_test_files(session.config)
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def import_test_files(config: pytest.Config) -> None:
    """Imports the files that will be collected, from this process's share on. Collection reports what fails."""
    files = test_files([Path(argument.partition("::")[0]) for argument in config.args])
    first = len(files) * INDEX // COUNT
    for file in files[first:] + files[:first]:
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.resolve().relative_to(config.rootpath).with_suffix("").parts))


def test_files(paths: list[Path]) -> list[Path]:
    return [file for path in paths for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
