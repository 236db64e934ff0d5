"""The events of a step: the beginning of a row's tokens, and the last event of a request."""

from engine_core.events import Finished, Logprobs, NewTokens, finished
from engine_core.request import Stop
from tests.fakes import make_core_request


def test_the_first_tokens_keep_their_logprobs() -> None:
    tokens = NewTokens(7, 3, [5, 6, 8], Logprobs(2, [5, 1, 6, 1, 8, 1], [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]))
    assert tokens.first(2) == NewTokens(7, 3, [5, 6], Logprobs(2, [5, 1, 6, 1], [-1.0, -2.0, -3.0, -4.0]))
    assert tokens.first(3) == tokens
    assert NewTokens(7, 3, [5, 6], None).first(1) == NewTokens(7, 3, [5], None)


def test_the_last_event_has_the_final_counts() -> None:
    request = make_core_request(4, [1, 2, 3], resumed=[9, 9])
    request.num_preemptions = 2
    assert finished(request, Stop("abort")) == Finished(4, Stop("abort"), 3, 2, 0, 2), "it was never admitted"
    request.num_cached_tokens = 1
    assert finished(request, Stop("stop", 9)) == Finished(4, Stop("stop", 9), 3, 2, 1, 2)
