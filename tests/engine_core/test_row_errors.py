"""The parameter at fault for an error of a row."""

import pytest

from engine_core.row_errors import GRAMMAR, NO_TOKEN_LEFT, PENALTY_OVERFLOW, param_at_fault
from engine_core.step_plan import SamplingParams, pack_i32

IDS = pack_i32([3])


@pytest.mark.parametrize(
    ("cause", "sampling", "param"),
    [
        (NO_TOKEN_LEFT, SamplingParams(1, allowed_token_ids=IDS, bad_words_token_ids=(IDS,)), "allowed_token_ids"),
        (NO_TOKEN_LEFT, SamplingParams(1, bad_words_token_ids=(IDS,), min_tokens=1), "bad_words"),
        (NO_TOKEN_LEFT, SamplingParams(1, min_tokens=1), "min_tokens"),
        (PENALTY_OVERFLOW, SamplingParams(1, allowed_token_ids=IDS), "repetition_penalty"),
        ("", SamplingParams(1, allowed_token_ids=IDS), ""),
        ("a newer cause", SamplingParams(1, allowed_token_ids=IDS), ""),
    ],
)
def test_the_parameter_at_fault(cause: str, sampling: SamplingParams, param: str) -> None:
    assert param_at_fault(cause, sampling) == param


@pytest.mark.parametrize(
    ("cause", "sampling", "param"),
    [
        (GRAMMAR, SamplingParams(1, allowed_token_ids=IDS), "grammar"),
        (NO_TOKEN_LEFT, SamplingParams(1, allowed_token_ids=IDS, min_tokens=1), "allowed_token_ids"),
        (NO_TOKEN_LEFT, SamplingParams(1, bad_words_token_ids=(IDS,), min_tokens=1), "bad_words"),
        (NO_TOKEN_LEFT, SamplingParams(1, min_tokens=1), "min_tokens"),
        (NO_TOKEN_LEFT, SamplingParams(1), "grammar"),
        (PENALTY_OVERFLOW, SamplingParams(1), "repetition_penalty"),
    ],
)
def test_the_parameter_at_fault_beside_a_grammar(cause: str, sampling: SamplingParams, param: str) -> None:
    assert param_at_fault(cause, sampling, has_grammar=True) == param
