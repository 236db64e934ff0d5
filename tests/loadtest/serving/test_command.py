"""Flag values, output files, and the exit status of a benchmark."""

import asyncio
import os
import signal
from argparse import ArgumentTypeError
from collections.abc import Callable, Coroutine
from math import inf
from pathlib import Path
from typing import Any

import pytest

from loadtest.serving.command import (
    COUNT,
    TOKENS,
    Parser,
    UsageError,
    checked_key,
    checked_url,
    make_folder,
    make_folder_of,
    number,
    run_command,
    several,
    write,
)
from services.errors import Fatal


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "'x' is not a number"),
        ("0.5", "0.5 must be more than 0.5 and at most 2"),
        ("2.1", "2.1 must be more than 0.5 and at most 2"),
        ("nan", "nan must be more than 0.5 and at most 2"),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_limits(text: str, message: str) -> None:
    read = number(float, 0.5, 2, above=True)
    assert (read("0.6"), read("2")) == (0.6, 2)
    with pytest.raises(ArgumentTypeError, match=f"^{message}$"):
        read(text)


def test_a_number_without_an_upper_limit() -> None:
    assert number(float, 0)("inf") == inf
    assert (COUNT("1"), TOKENS(str(2**31 - 1))) == (1, 2**31 - 1)
    with pytest.raises(ArgumentTypeError, match="^0 must be at least 1$"):
        COUNT("0")
    with pytest.raises(ArgumentTypeError, match=r"^'1\.5' is not a whole number$"):
        COUNT("1.5")


def test_several_values_are_separated_by_commas() -> None:
    assert several(COUNT)("1, 22,3") == (1, 22, 3)
    with pytest.raises(ArgumentTypeError):
        several(COUNT)("1,,3")


def test_a_parser_raises_and_knows_no_abbreviations() -> None:
    parser = Parser("test", "none")
    parser.add_argument("--number", type=COUNT)
    assert parser.parse_args(["--number=3"]).number == 3
    with pytest.raises(UsageError, match="unrecognized arguments: --num=3"):
        parser.parse_args(["--num=3"])


@pytest.mark.parametrize("url", ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"])
def test_a_url_has_no_final_slash_and_no_version(url: str) -> None:
    assert checked_url(url) == "http://a:1"


@pytest.mark.parametrize("url", ["a:1", "ftp://a", "http://", "http://a:0", "http://a:b"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not a URL such as"):
        checked_url(url)


def test_a_key_is_one_printable_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " environment\n")
    assert (checked_key(None), checked_key("flag")) == ("environment", "flag")
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    assert checked_key(None) is None
    with pytest.raises(UsageError, match="^--api-key: must be one line of printable characters$"):
        checked_key("two\nlines")


def test_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "folder" / "result.json"
    make_folder_of("--output-json", None)
    make_folder_of("--output-json", path)
    write(path, "text")
    assert path.read_text() == "text"
    assert capsys.readouterr().err == f"saved in {path}\n"
    with pytest.raises(Fatal, match=f"^{path.parent}: Is a directory$"):
        write(path.parent, "text")
    with pytest.raises(Fatal, match=f"^--result-dir {path}/sub: Not a directory$"):
        make_folder("--result-dir", path / "sub")


async def succeed() -> int:
    return 7


async def refuse() -> int:
    raise UsageError("--flag: wrong")


async def fail() -> int:
    raise Fatal("several\n  lines")


async def wait_after_sigterm() -> int:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()
    return 0


@pytest.mark.parametrize(
    ("main", "status", "line"),
    [
        (succeed, 7, ""),
        (refuse, 2, "bench: error: --flag: wrong\n"),
        (fail, 1, "bench: error: several lines\n"),
        (wait_after_sigterm, 130, "bench: stopped before the end\n"),
    ],
    ids=["success", "usage", "fatal", "SIGTERM"],
)
def test_the_exit_status_of_a_command(
    main: Callable[[], Coroutine[Any, Any, int]], status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("bench", main) == status
    assert capsys.readouterr() == ("", line)
