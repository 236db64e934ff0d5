"""The table of errors, and that an error survives its way through a message."""

import grpc
import pytest

from services.rpc.errors import (
    MAX_MESSAGE_CHARACTERS,
    MAX_PARAM_CHARACTERS,
    STATUS,
    TandemError,
    invalid,
    timed_out,
    too_long,
    too_much,
    unavailable,
)


def test_every_code_is_a_grpc_status() -> None:
    assert set(STATUS) <= {code.name for code in grpc.StatusCode}


@pytest.mark.parametrize(
    ("error", "http", "openai_type", "retryable"),
    [
        (invalid("no", "top_p"), 400, "invalid_request_error", False),
        (too_long(9, 8), 400, "invalid_request_error", False),
        (too_much("full", 3), 429, "rate_limit_error", True),
        (unavailable("none"), 503, "server_error", True),
        (timed_out("no answer"), 503, "server_error", True),
        (TandemError("INTERNAL", "a bug"), 500, "server_error", False),
    ],
    ids=lambda value: value.code if isinstance(value, TandemError) else None,
)
def test_each_error_has_its_row_of_the_table(error: TandemError, http: int, openai_type: str, retryable: bool) -> None:
    assert (error.status.http, error.status.openai_type, error.retryable) == (http, openai_type, retryable)
    assert (error.retry_after > 0) == retryable


def test_an_error_survives_its_message() -> None:
    error = TandemError("RESOURCE_EXHAUSTED", "the queue is full", "n", retryable=True, retry_after=7)
    again = TandemError.from_proto(error.to_proto())
    assert vars(again) == vars(error) and str(again) == "the queue is full"


def test_an_unknown_code_is_an_internal_error() -> None:
    """Of a peer that is newer or sends malformed messages."""
    assert TandemError("TEAPOT", "no").code == "INTERNAL"


def test_long_quotations_are_shortened() -> None:
    error = invalid("x" * 5000, "y" * 5000)
    assert error.message == "x" * (MAX_MESSAGE_CHARACTERS - 1) + "…"
    assert len(error.param) == MAX_PARAM_CHARACTERS and error.param.endswith("…")
    assert invalid("x" * MAX_MESSAGE_CHARACTERS).message == "x" * MAX_MESSAGE_CHARACTERS


@pytest.mark.parametrize(("at_least", "count"), [(False, "9"), (True, "at least 9")])
def test_a_prompt_that_is_too_long_names_both_lengths(at_least: bool, count: str) -> None:
    error = too_long(9, 8, at_least=at_least)
    assert f"has {count} tokens" in error.message and "8 tokens" in error.message and error.param == "prompt"
