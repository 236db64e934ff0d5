"""--max-logprobs: its default, the whole vocabulary, and results that would not fit into a message."""

import pytest

from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from services.worker.errors import ModelError
from services.worker.logprob_limit import check_result_size, logprob_limit, logprob_width


@pytest.mark.parametrize(
    ("given", "vocab_size", "limit"), [(20, 1000, 20), (20, 7, 7), (-1, 1000, 1000), (5000, 1000, 1000), (0, 1000, 0)]
)
def test_the_limit_is_at_most_the_vocabulary(given: int, vocab_size: int, limit: int) -> None:
    assert logprob_limit(WorkerOptions(max_logprobs=given), vocab_size) == limit


def test_requested_ids_may_be_more_than_the_top_ones() -> None:
    assert logprob_width(WorkerOptions(), 1000) == 129
    assert logprob_width(WorkerOptions(max_logprobs=500), 1000) == 501


def test_a_result_that_does_not_fit_is_refused_with_what_would() -> None:
    """Each request may have a sampled token and a scored one of its prompt."""
    check_result_size(WorkerOptions(), 150_000, BatchLimits(2, 65_536, 65_536))
    check_result_size(WorkerOptions(max_logprobs=-1), 150_000, BatchLimits(2, 27, 2048))
    with pytest.raises(ModelError, match=r"^--max-logprobs: 150000 logprobs of 28 requests \(--max-num-seqs\) do not"):
        check_result_size(WorkerOptions(max_logprobs=-1), 150_000, BatchLimits(2, 28, 2048))
