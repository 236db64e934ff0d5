"""The logprobs of a prompt as JSON, as vLLM has them and as an echo does."""

import json
from typing import Any

import pytest

from services.rpc.columns import pack_f32, pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.apis.answer_options import AnswerOptions
from services.shim.apis.json_pieces import WrittenColumns
from services.shim.apis.prompt_scores import ECHOED, FIELD, PromptScores
from services.shim.time_slices import TimeSlices

TEXTS = {5: b"five", 6: b" six", 7: "\u6771".encode()[:2], 8: b" eight"}


class Call:
    """What PromptScores reads of a TextCall: a prompt 5, 6, 7, 8."""

    prompt_token_ids = pack_u32([5, 6, 7, 8])
    num_prompt_tokens = 4
    first_prompt_token = b"five"


def message(start: int, tokens: list[int], rank: int = 3) -> text_pb2.TextPromptLogprobs:
    """Each token has its own entry, -inf for the last id, and those of 6 and 5 as the most likely ones."""
    ids = [one for token in tokens for one in (token, 6, 5)]
    values = [one for token in tokens for one in (-0.5 * token if token != 8 else float("-inf"), -0.25, -1.5)]
    return text_pb2.TextPromptLogprobs(
        logprobs=pb.PromptLogprobs(
            start_index=start,
            width=3,
            token_ids=pack_u32(ids),
            logprobs=pack_f32(values),
            ranks=pack_u32([1 if token == 6 else rank for token in tokens]),
        ),
        token_ids=pack_u32(sorted(TEXTS)),
        tokens=[TEXTS[one] for one in sorted(TEXTS)],
        text_offsets=pack_u32([4 * start + at for at in range(len(tokens))]),
    )


async def scores(*messages: text_pb2.TextPromptLogprobs, **options: bool) -> PromptScores:
    call: Any = Call()
    made = PromptScores(call, AnswerOptions(**options))
    size = await made.add(messages, TimeSlices())
    assert size > 0
    return made


@pytest.mark.parametrize("parts", [([6, 7, 8],), ([6], [7, 8])], ids=["whole", "parts"])
async def test_vllms_field(parts: tuple[list[int], ...]) -> None:
    starts = [1 + sum(map(len, parts[:at])) for at in range(len(parts))]
    made = await scores(*map(message, starts, parts), prompt_logprobs=True)
    assert made.is_complete
    first, six, seven, eight = json.loads(b"".join(made.written.array(FIELD)))
    assert first is None
    assert six == {
        "6": {"logprob": -3.0, "rank": 1, "decoded_token": " six"},
        "5": {"logprob": -1.5, "rank": 2, "decoded_token": "five"},
    }
    assert list(seven) == ["7", "6", "5"] and seven["7"] == {"logprob": -3.5, "rank": 3, "decoded_token": "\ufffd"}
    assert seven["6"]["rank"] == 1 and eight["8"]["logprob"] == -9999.0


async def test_an_echo_begins_with_them() -> None:
    own = WrittenColumns()
    own.add({"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{}], "text_offset": [9]})
    made = await scores(message(1, [6, 7, 8]), echoes_logprobs=True)
    found = json.loads(b"".join(made.written.followed_by(own, ECHOED)))
    assert found["tokens"] == ["five", " six", "\ufffd", " eight", "a"]
    assert found["token_logprobs"] == [None, -3.0, -3.5, -9999.0, -1.0]
    assert found["top_logprobs"][:2] == [None, {" six": -3.0, "five": -1.5}]
    assert found["text_offset"] == [0, 4, 5, 6, 9]


async def test_tokens_as_ids() -> None:
    made = await scores(message(1, [6]), echoes_logprobs=True, tokens_as_token_ids=True)
    found = json.loads(b"".join(made.written.followed_by(WrittenColumns(), ECHOED)))
    assert found["tokens"] == ["token_id:5", "token_id:6"]
    assert found["top_logprobs"] == [None, {"token_id:6": -3.0, "token_id:5": -1.5}]
    assert not made.is_complete
