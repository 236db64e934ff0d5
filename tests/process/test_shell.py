"""The shell of every process: what a signal ends, and what it must not cut short."""

import asyncio
import os
import signal

import pytest

from services.errors import Fatal
from services.process.shell import run_until_stopped, to_the_end


def test_a_signal_ends_the_process_in_order() -> None:
    told: list[str] = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            told.append("cleaned")

    assert run_until_stopped("engine", main, ()) == 0
    assert told == ["cleaned"]


def test_a_signal_does_not_cut_short_an_end_that_is_under_way(capsys: pytest.CaptureFixture[str]) -> None:
    """Who cannot go on ends by itself, and the launcher ends all of them at the same moment."""
    told: list[str] = []

    async def clean() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(3):
            await asyncio.to_thread(os.getpid)
        told.append("cleaned")

    async def main() -> None:
        try:
            raise Fatal("the model is another one")
        finally:
            await to_the_end(clean())

    assert run_until_stopped("engine", main, ()) == 1
    assert told == ["cleaned"]
    assert capsys.readouterr().err == "tandem engine: error: the model is another one\n"


def test_a_failure_while_cleaning_is_told() -> None:
    async def clean() -> None:
        raise ValueError("no space")

    with pytest.raises(ValueError, match="no space"):
        asyncio.run(to_the_end(clean()))
