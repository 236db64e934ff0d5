import subprocess
import sys
from pathlib import Path

import pytest

from services.worker.models.describe import FAMILIES
from services.worker.models.page import listing, main, page, what
from services.worker.models.wrappers import WRAPPERS

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def test_the_page_is_that_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_family_says_what_it_is() -> None:
    for name, family in FAMILIES.items():
        assert len(what(family)) > 20 and name in listing()
    assert all(name in listing() and name in page() for name in WRAPPERS)


def test_the_command_prints_the_listing() -> None:
    command = [sys.executable, "-m", "services.cli", "models"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, listing())


def test_the_command_has_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all"]) == 2
    assert "unexpected argument 'all'" in capsys.readouterr().err
