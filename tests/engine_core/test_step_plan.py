"""The columns of a step's messages, and that engines and workers of two versions can read each other's messages."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.step_plan import (
    BadMessage,
    NewRequest,
    SamplingParams,
    StepPlan,
    StepResult,
    ThinkingBudget,
    checked_column,
    pack_i32,
    unpack_i32,
)
from tests.fakes import make_result


def make_plan() -> StepPlan:
    """One row, which a new request has, with a value in every field."""
    budget = ThinkingBudget(3, pack_i32([5]), pack_i32([6, 7]), starts_open=True)
    sampling = SamplingParams(max_tokens=4, stop_token_ids=(1,), logprobs=2, thinking_budget=budget)
    new = NewRequest(1, 0, pack_i32([1, 2]), b"", [pack_i32([3])], sampling, 2**64 - 1, 1)
    column = pack_i32([5])
    return StepPlan(1, 2, None, [3], [new], column, column, column, column, column, [column], [column])


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_columns_survive_their_packing(values: list[int]) -> None:
    column = unpack_i32(pack_i32(values))
    assert column.tolist() == values and column.dtype == np.int32
    assert pack_i32(column) == pack_i32(values)


def test_columns_are_little_endian_and_read_only() -> None:
    assert pack_i32([1, -2]) == b"\1\0\0\0\xfe\xff\xff\xff"
    assert pack_i32(np.array([True, False])) == b"\1\0\0\0\0\0\0\0"
    with pytest.raises(ValueError, match="read-only"):
        unpack_i32(pack_i32([1]))[0] = 2


@pytest.mark.parametrize("value", [-(2**31) - 1, 2**31])
def test_a_value_that_int32_cannot_hold_is_an_error(value: int) -> None:
    with pytest.raises(OverflowError):
        pack_i32([value])


@pytest.mark.parametrize("values", [[], [0], [7, 0, 3]])
def test_a_column_within_its_range_is_read(values: list[int]) -> None:
    assert checked_column("slots", pack_i32(values), 7).tolist() == values


@pytest.mark.parametrize(("values", "found"), [([8], 8), ([0, -1, 3], -1), ([2**31 - 1], 2**31 - 1)])
def test_a_value_out_of_range_is_named(values: list[int], found: int) -> None:
    with pytest.raises(BadMessage, match=f"^slots: {found} is not from 0 to 7$"):
        checked_column("slots", pack_i32(values), 7)


@pytest.mark.parametrize("num_bytes", [1, 3, 5])
def test_bytes_that_are_not_whole_rows_are_refused(num_bytes: int) -> None:
    with pytest.raises(BadMessage, match=f"^slots: {num_bytes} bytes, but a column has 4 bytes per row$"):
        checked_column("slots", bytes(num_bytes), 7)


MESSAGES = [make_plan(), make_plan().new_requests[0], make_plan().new_requests[0].sampling]
MESSAGES += [make_result(make_plan(), [(1, 0, 5)])]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_field_may_be_added_at_the_end(message: Any) -> None:
    """An older reader skips it, a newer one fills in its default."""
    newer_type = msgspec.defstruct("Newer", [("added", float, 0.5)], bases=(type(message),), array_like=True)
    fields = [getattr(message, name) for name in message.__struct_fields__]
    newer = msgspec.msgpack.encode(newer_type(*fields, added=1.5))
    assert msgspec.msgpack.decode(newer, type=type(message)) == message
    older = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(older, type=newer_type).added == 0.5


def test_a_message_of_the_first_version_is_read() -> None:
    """The order of fields is the wire format. What this version added since has its default."""
    sampling = [4, 0.5, 0.9, 3, 0.1, 1.0, -1.0, 1.5, 2, [0], [1], 5]
    new = [1, 0, pack_i32([1, 2]), pack_i32([3]), [pack_i32([6])], sampling, 9, 1]
    columns = [pack_i32([row]) for row in range(5)]
    content = msgspec.msgpack.encode([1, 2, None, [3], [new], *columns, [pack_i32([0, 1])], [pack_i32([6])]])
    plan = msgspec.msgpack.decode(content, type=StepPlan)
    assert (plan.epoch, plan.step_id, plan.base_step_id, plan.released_slots) == (1, 2, None, [3])
    found = [plan.slots, plan.num_new_tokens, plan.num_computed_tokens, plan.output_indices, plan.sampled]
    assert found == columns
    assert (plan.block_offsets, plan.block_ids) == ([pack_i32([0, 1])], [pack_i32([6])])
    assert (plan.deadline_ms, plan.was_runnable) == (0, False)
    (request,) = plan.new_requests
    assert (request.handle, request.slot, request.seed, request.choice, request.traceparent) == (1, 0, 9, 1, "")
    assert request.sampling == SamplingParams(
        max_tokens=4,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.5,
        min_tokens=2,
        eos_token_ids=(0,),
        stop_token_ids=(1,),
        logprobs=5,
    )
    assert (request.sampling.ignore_eos, request.sampling.logit_bias_token_ids) == (False, b"")
    result = msgspec.msgpack.decode(
        msgspec.msgpack.encode([1, 2, b"h", b"s", b"c", b"t", b"w", b"i", b"v"]), type=StepResult
    )
    assert result == StepResult(
        epoch=1,
        step_id=2,
        handles=b"h",
        start_indices=b"s",
        counts=b"c",
        token_ids=b"t",
        logprob_widths=b"w",
        logprob_token_ids=b"i",
        logprobs=b"v",
        errors=[],
        error_causes=[],
    )


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({}, 0),
        ({"logprobs": 0}, 1),
        ({"logprobs": 5}, 6),
        ({"logprobs": 5, "logprob_token_ids": pack_i32([1, 2])}, 3),
    ],
)
def test_requested_ids_take_the_place_of_the_top_logprobs(fields: dict[str, Any], width: int) -> None:
    assert SamplingParams(4, **fields).logprob_width == width


def test_ignored_end_tokens_do_not_end_an_answer() -> None:
    ends = {"eos_token_ids": (0, 2), "stop_token_ids": (7,)}
    assert SamplingParams(4, **ends).ending_token_ids == (0, 2, 7)
    assert SamplingParams(4, **ends, ignore_eos=True).ending_token_ids == (7,)
