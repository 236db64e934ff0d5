"""The limits on a prompt of token ids."""

import pytest

from services.rpc.errors import TandemError
from services.rpc.prompt_limits import MAX_TRUNCATED_IDS, check_num_ids


def test_a_prompt_is_shorter_than_the_context() -> None:
    check_num_ids(63, 64, truncated=False)
    with pytest.raises(TandemError, match="64 tokens.*maximum context length is 64") as refused:
        check_num_ids(64, 64, truncated=False)
    assert (refused.value.param, refused.value.reason) == ("prompt", "context_length_exceeded")


def test_what_is_truncated_may_be_longer() -> None:
    check_num_ids(MAX_TRUNCATED_IDS, 64, truncated=True)
    check_num_ids(2 * MAX_TRUNCATED_IDS, 2 * MAX_TRUNCATED_IDS, truncated=True)
    with pytest.raises(TandemError, match="can be truncated"):
        check_num_ids(MAX_TRUNCATED_IDS + 1, 64, truncated=True)
