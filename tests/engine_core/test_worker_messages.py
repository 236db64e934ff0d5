"""Every message between engine and worker survives its encoding; ModelFacts refuse values out of range."""

from typing import Any

import msgspec
import pytest

from engine_core.kv_groups import FULL
from engine_core.step_plan import BadMessage
from engine_core.worker_messages import (
    MAX_BLOCKS,
    MAX_CHARACTERS,
    MAX_DEFAULT,
    MAX_IDS,
    MAX_KV_GROUPS,
    MAX_LENGTH,
    MAX_NAMES,
    BatchLimits,
    Ping,
    Refused,
    Register,
    SamplingDefaults,
    Step,
    StepDone,
    WorkerHello,
    decode_from_engine,
    decode_from_worker,
    encode,
)
from tests.engine_core.test_step_plan import make_plan
from tests.fakes import VOCAB_SIZE, make_facts, make_result

FROM_WORKER = [WorkerHello(1, 2, 3), Register(2, make_facts()), StepDone(make_result(make_plan(), [(1, 0, 5)]))]
FROM_ENGINE = [BatchLimits(1, 2, 3), Step(make_plan()), Ping(), Refused("why"), Refused("later", for_now=True)]


def tag_of(message: Any) -> str:
    return type(message).__name__


@pytest.mark.parametrize("message", FROM_WORKER, ids=tag_of)
def test_every_worker_message_survives_its_encoding(message: Any) -> None:
    assert decode_from_worker([encode(message)]) == message


@pytest.mark.parametrize("message", FROM_ENGINE, ids=tag_of)
def test_every_engine_message_survives_its_encoding(message: Any) -> None:
    assert decode_from_engine([encode(message)]) == message


def test_a_message_of_the_wrong_side_is_refused() -> None:
    for decode, messages in ((decode_from_engine, FROM_WORKER), (decode_from_worker, FROM_ENGINE)):
        for message in messages:
            with pytest.raises(BadMessage, match="^not a message of this protocol: ValidationError$"):
                decode([encode(message)])


@pytest.mark.parametrize("num_frames", [0, 2])
def test_a_message_has_one_frame(num_frames: int) -> None:
    with pytest.raises(BadMessage, match=f"^a message has one frame, but this one has {num_frames}$"):
        decode_from_engine([encode(Ping())] * num_frames)


def test_the_tag_of_a_message_is_part_of_the_protocol() -> None:
    tags = [msgspec.msgpack.decode(encode(message))["type"] for message in (*FROM_WORKER, *FROM_ENGINE)]
    assert tags == ["hello", "register", "done", "limits", "step", "ping", "refused", "refused"]


def test_a_refusal_without_for_now_is_final() -> None:
    message = decode_from_engine([msgspec.msgpack.encode({"type": "refused", "message": "why"})])
    assert message == Refused("why", for_now=False)


def test_an_unknown_field_is_skipped() -> None:
    fields = {"type": "limits", "protocol": 1, "max_num_seqs": 2, "added": 1, "max_num_batched_tokens": 3}
    newer = msgspec.msgpack.encode(fields)
    assert decode_from_engine([newer]) == BatchLimits(1, 2, 3)


RANGES = {
    "max_model_len": (1, MAX_LENGTH),
    "vocab_size": (1, MAX_LENGTH),
    "block_size": (1, MAX_LENGTH),
    "num_blocks": (1, MAX_BLOCKS),
    "max_logprobs": (0, VOCAB_SIZE),
}


@pytest.mark.parametrize("name", RANGES)
def test_a_number_may_be_the_lowest_and_the_highest_of_its_range(name: str) -> None:
    low, high = RANGES[name]
    others = {"eos_token_ids": (), "max_logprobs": 0} if name == "vocab_size" else {}
    for value in (low, high):
        assert getattr(make_facts(**others | {name: value}), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ValueError, match=f"^{name} is {value}, but must be from {low} to {high}$"):
            make_facts(**others | {name: value})


@pytest.mark.parametrize(
    ("name", "low", "high", "item"),
    [
        ("served_model_names", 1, MAX_NAMES, "name"),
        ("kv_groups", 1, MAX_KV_GROUPS, FULL),
        ("eos_token_ids", 0, MAX_IDS, VOCAB_SIZE - 1),
    ],
)
def test_a_list_may_have_the_fewest_and_the_most_entries(name: str, low: int, high: int, item: object) -> None:
    for length in (low, high):
        assert len(getattr(make_facts(**{name: (item,) * length}), name)) == length
    with pytest.raises(ValueError, match=f"^number of {name} is {high + 1}, but must be from {low} to {high}$"):
        make_facts(**{name: (item,) * (high + 1)})


@pytest.mark.parametrize("name", ["tokenizer_digest", "numerics_id", "weights_version"])
def test_a_name_has_a_longest_length(name: str) -> None:
    assert getattr(make_facts(**{name: "x" * MAX_CHARACTERS}), name)
    with pytest.raises(ValueError, match=f"^a name has more than {MAX_CHARACTERS} characters$"):
        make_facts(**{name: "x" * (MAX_CHARACTERS + 1)})


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE])
def test_eos_token_ids_are_in_the_vocabulary(token_id: int) -> None:
    with pytest.raises(ValueError, match="^eos_token_ids: not all are in the vocabulary$"):
        make_facts(eos_token_ids=(0, token_id))


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"])
@pytest.mark.parametrize("value", [-1.5, MAX_DEFAULT * 2, float("nan")])
def test_a_default_that_is_no_sampling_parameter_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match="^sampling_defaults: a value is not from -1 to 1e\\+06$"):
        SamplingDefaults(**{name: value})  # type: ignore[arg-type]


def test_registering_with_bad_facts_is_a_bad_message() -> None:
    content = msgspec.msgpack.decode(encode(Register(2, make_facts())))
    content["facts"]["num_blocks"] = 0
    with pytest.raises(BadMessage):
        decode_from_worker([msgspec.msgpack.encode(content)])
