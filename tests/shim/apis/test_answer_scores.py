"""In a stream, what a choice says waits for the logprobs of its prompt, which choice 0 brings, unless one is cut."""

from typing import Any

from services.rpc.columns import pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.apis.answer_options import AnswerOptions
from services.shim.apis.answer_scores import AnswerScores
from services.shim.updates import Update
from tests.shim.apis.test_prompt_scores import Call, message


class Generation:
    """One prompt 5, 6, 7, 8 with three choices; `take` returns the next of these lists of updates."""

    num_prompts, num_choices = 1, 3

    def __init__(self, *updates: list[Update]) -> None:
        self.calls = [Call()]
        self.held = 0
        self._updates = list(updates)

    async def take(self) -> list[Update]:
        return self._updates.pop(0)

    def hold(self, size: int) -> None:
        self.held += size


def said(index: int, token_id: int = 9) -> Update:
    return Update(index, token_ids=bytearray(pack_u32([token_id])))


def scored(start: int, tokens: list[int]) -> Update:
    return Update(0, prompt_logprobs=[message(start, tokens)], held=1000)


async def taken(*updates: list[Update], times: int = 1) -> list[list[Update]]:
    generation: Any = Generation(*updates)
    scores = AnswerScores(generation, AnswerOptions(echoes_logprobs=True))
    found = [await scores.take() for _ in range(times)]
    assert -4000 < generation.held < 1000, "the JSON is held instead"
    return found


async def test_all_choices_wait_for_the_last_logprob() -> None:
    first, second, own = said(1), said(2), said(0)
    found = await taken([scored(1, [6]), first], [scored(2, [7]), second], [scored(3, [8])], [own], times=2)
    assert found == [[first, second], [own]]


async def test_they_come_with_the_first_token_of_choice_0() -> None:
    update = scored(1, [6, 7, 8])
    update.token_ids += pack_u32([9])
    assert await taken([update]) == [[update]]
    assert update.held == 0


async def test_a_choice_that_is_cut_off_waits_for_nothing() -> None:
    for reason in (pb.FINISH_REASON_ABORT, pb.FINISH_REASON_ERROR):
        waiting, end = said(1), Update(0, terminal=text_pb2.TextTerminal(reason=reason))
        assert await taken([waiting], [end]) == [[waiting, end]]
