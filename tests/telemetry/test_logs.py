"""Log lines as text and as JSON, fields, rate limits, and what a value from a client cannot do to a line."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from services.telemetry.logs import RATE_LIMIT_SECONDS, RateLimitedLog, fail, fields, set_up_logging

log = logging.getLogger("tests.telemetry.logs")
Lines = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Restores the process's logging after each test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    """Returns the lines on stderr since the last call."""
    return lambda: capsys.readouterr().err.splitlines()


def test_a_text_line_has_time_level_role_message_and_fields(lines: Lines) -> None:
    set_up_logging("engine", "info", "text")
    log.info("request finished", extra=fields(request_id="a", tokens=3, reason="", note='x "y" z'))
    (line,) = lines()
    moment, _, rest = line.partition(" INFO ")
    assert datetime.strptime(moment, "%Y-%m-%d %H:%M:%S,%f")
    assert rest == r'[engine] request finished request_id=a tokens=3 reason="" note="x \"y\" z"'


def test_a_json_line_is_one_object(lines: Lines) -> None:
    set_up_logging("shim", "info", "json")
    log.warning("two\nlines %s", "ü", extra=fields(request_id="a", tokens=3))
    found = json.loads(lines()[0])
    assert datetime.fromisoformat(found.pop("time")).tzinfo is not None
    assert found == {
        "level": "warning",
        "role": "shim",
        "message": "two\nlines ü",
        "request_id": "a",
        "tokens": 3,
    }


def test_an_exception_stays_in_its_json_line(lines: Lines) -> None:
    set_up_logging("shim", "info", "json")
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("it failed")
    (line,) = lines()
    assert json.loads(line)["exception"].endswith("ValueError: bad")


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31mb", "a\u2028b", "a\x85b", "a\udcffb"], ids=ascii)
def test_a_value_adds_no_line_and_no_control_sequence(text: str, lines: Lines) -> None:
    set_up_logging("shim", "info", "text")
    log.info("message %s", text, extra=fields(value=text))
    (line,) = lines()
    assert line.isprintable() and line.count(ascii(text)[1:-1]) >= 1


@pytest.mark.parametrize(("level", "shown"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_lines_below_the_level_are_not_written(level: str, shown: int, lines: Lines) -> None:
    set_up_logging("shim", level, "text")
    for write in (log.debug, log.info, log.warning, log.error):
        write("x")
    assert len(lines()) == shown


def test_warnings_are_log_lines_and_libraries_are_quiet(lines: Lines) -> None:
    set_up_logging("worker", "debug", "text")
    logging.getLogger("httpx").info("a request")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", stacklevel=1)
    (line,) = lines()
    assert "WARNING [worker] " in line and "UserWarning: old" in line


def test_libraries_are_quiet_below_the_level(lines: Lines) -> None:
    set_up_logging("shim", "error", "text")
    logging.getLogger("httpx").warning("slow")
    logging.getLogger("httpx").error("down")
    (line,) = lines()
    assert "down" in line


def test_a_rate_limited_log_counts_what_it_suppresses(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    limited = RateLimitedLog(log, logging.WARNING, lambda: now[0])
    for _ in range(5):
        limited.log("refused %s", "a")
    now[0] = RATE_LIMIT_SECONDS - 0.01
    limited.log("refused %s", "b")
    now[0] = RATE_LIMIT_SECONDS
    limited.log("refused %s", "c")
    now[0] = 2 * RATE_LIMIT_SECONDS
    limited.log("refused %s", "d")
    assert [record.getMessage() for record in caplog.records] == [
        "refused a",
        "refused c (and 5 more like it)",
        "refused d",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_failure_is_one_line_in_either_format(style: str, lines: Lines) -> None:
    set_up_logging("engine", "info", style)
    assert fail("engine", ValueError("no 100%\n memory")) == 1
    (line,) = lines()
    if style == "json":
        found = json.loads(line)
        assert (found["role"], found["level"], found["message"]) == ("engine", "error", "no 100% memory")
    else:
        assert line == "tandem engine: error: no 100% memory"
