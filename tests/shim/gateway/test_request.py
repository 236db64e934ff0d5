"""Which fields a request of a gateway becomes, what stands for unset, and what is refused by name."""

import time
from typing import Any

import pytest
from smg_grpc_proto import vllm_engine_pb2 as vllm

from services.rpc.columns import unpack_f32, unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.shim.apis.submit import SubmitContext
from services.shim.gateway.request import checked_request, field_of, submit_of
from tests.shim.harness import FACTS


def submit(
    text: str | None = "Hi", *, sampling: dict[str, Any] | None = None, cache_group: str = "", **fields: Any
) -> text_pb2.TextSubmit:
    if text is not None:
        fields["text"] = text
    request = vllm.GenerateRequest(sampling_params=vllm.SamplingParams(**(sampling or {})), **fields)
    checked = checked_request(request, FACTS)
    return submit_of(checked, SubmitContext(FACTS, cache_group=cache_group))


def refusal(**arguments: Any) -> TandemError:
    with pytest.raises(TandemError) as caught:
        submit(**arguments)
    assert caught.value.code == "INVALID_ARGUMENT"
    return caught.value


def test_text() -> None:
    made = submit("Hi")
    assert (made.text.text, made.text.add_special_tokens, len(made.choices)) == ("Hi", True, 1)


def test_token_ids() -> None:
    made = submit(None, tokenized=vllm.TokenizedInput(input_ids=[1, 2, 3], original_text="not read"))
    assert unpack_u32(made.prompt_token_ids) == [1, 2, 3]


def test_the_group_of_the_key_reaches_the_submit() -> None:
    assert [submit("Hi", cache_group=group).cache_group for group in ("", "group")] == ["", "group"]


def test_what_is_left_out_has_the_defaults_of_rest() -> None:
    sampling = submit().sampling
    unset = ("temperature", "top_p", "repetition_penalty", "max_tokens", "logprobs")
    assert [name for name in unset if sampling.HasField(name)] == []
    assert not submit().HasField("seed")


def test_zero_where_zero_is_a_value() -> None:
    """A gateway fills in the model's defaults, so its 0 is what the client asked for."""
    sampling = submit(sampling={"temperature": 0.0, "top_k": 0, "min_p": 0.0}).sampling
    for name in ("temperature", "top_k", "min_p", "presence_penalty", "frequency_penalty"):
        assert sampling.HasField(name) and getattr(sampling, name) == 0, name


def test_every_field_reaches_the_submit() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.75, "top_k": 5, "min_p": 0.25, "frequency_penalty": 1.5,
        "presence_penalty": -1.5, "repetition_penalty": 1.25, "max_tokens": 9, "min_tokens": 2, "logprobs": 2,
        "ignore_eos": True, "stop_token_ids": [4],
    }  # fmt: skip
    more = {"seed": -5, "n": 3, "logit_bias": {3: 1.5}, "truncate_prompt_tokens": 6}
    output = {
        "stop": ["a", "b"], "skip_special_tokens": True, "spaces_between_special_tokens": True,
        "include_stop_str_in_output": True,
    }  # fmt: skip
    made = submit(sampling=fields | more | output)
    assert {name: getattr(made.sampling, name) for name in fields} == fields
    assert {name: getattr(made.output, name) for name in output} == output
    assert (made.seed, [choice.choice for choice in made.choices]) == (2**64 - 5, [0, 1, 2])
    assert unpack_u32(made.sampling.logit_bias_token_ids) == [3]
    assert unpack_f32(made.sampling.logit_biases) == [1.5]
    assert made.truncation.max_tokens == 6 and not made.truncation.drop_end


def test_special_tokens_and_spaces_are_as_sent() -> None:
    output = submit().output
    assert not output.skip_special_tokens and not output.spaces_between_special_tokens


@pytest.mark.parametrize(
    ("sampling", "name"),
    [
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ],
)
def test_a_sampling_feature_that_is_not_there_is_named(sampling: dict[str, Any], name: str) -> None:
    error = refusal(sampling=sampling)
    assert error.message.startswith(f"{name} is not supported by this server: ") and error.param == name


SCHEMA = '{"type": "object", "properties": {"b": {}, "a": {"minimum": 1.50}}}'


@pytest.mark.parametrize(
    ("sampling", "form", "value"),
    [
        ({"json_schema": SCHEMA}, "json_schema", SCHEMA.encode()),
        ({"regex": "a+"}, "regex", "a+"),
        ({"grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"structural_tag": "{}"}, "structural_tag", b"{}"),
        ({"json_object": True}, "json_object", True),
        ({"choice": vllm.ChoiceConstraint(choices=["a", "b"])}, "choices", text_pb2.TextChoices(texts=["a", "b"])),
    ],
)
def test_a_constraint_is_the_form_of_the_answer(sampling: dict[str, Any], form: str, value: Any) -> None:
    found = submit(sampling=sampling).output.structured
    assert found.WhichOneof("form") == form and getattr(found, form) == value and found.strict
    assert [found.field] == list(sampling), "errors name this protocol's field"
    assert not submit().output.HasField("structured")


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"json_schema": ""}, "sampling_params.json_schema"),
        ({"regex": ""}, "sampling_params.regex"),
        ({"json_object": False}, "sampling_params.json_object"),
        ({"choice": vllm.ChoiceConstraint()}, "sampling_params.choice"),
    ],
)
def test_an_empty_constraint_is_refused_with_its_field(sampling: dict[str, Any], field: str) -> None:
    request = vllm.GenerateRequest(text="Hi", sampling_params=vllm.SamplingParams(**sampling))
    assert field_of(request, refusal(sampling=sampling).param) == field


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_transfer_params", vllm.KvTransferParams()),
        ("kv_transfer_params_json", "{}"),
        ("mm_inputs", vllm.MultimodalInputs()),
        ("extra_mm_inputs", [vllm.MultimodalInputs()]),
        ("media_refs", vllm.MediaRefs()),
    ],
)
def test_an_input_that_is_not_there_is_named(name: str, value: Any) -> None:
    error = refusal(**{name: value})
    assert error.message.startswith(f"{name} is not supported by this server: ") and error.param == name


def test_there_is_rank_0_only() -> None:
    assert submit(data_parallel_rank=0)
    for rank in (1, -1):
        error = refusal(data_parallel_rank=rank)
        assert str(rank) in error.message and error.param == "data_parallel_rank"


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"text": None}, "prompt"),
        ({"text": None, "tokenized": vllm.TokenizedInput()}, "prompt"),
        ({"text": None, "tokenized": vllm.TokenizedInput(input_ids=[1] * 64)}, "prompt"),
        ({"request_id": "no spaces"}, "request_id"),
        ({"sampling": {"n": 129}}, "n"),
        ({"sampling": {"temperature": 2.5}}, "temperature"),
        ({"sampling": {"temperature": float("nan")}}, "temperature"),
        ({"sampling": {"top_p": -0.5}}, "top_p"),
        ({"sampling": {"top_k": 2**31}}, "top_k"),
        ({"sampling": {"repetition_penalty": -1.0}}, "repetition_penalty"),
        ({"sampling": {"max_tokens": 0}}, "max_tokens"),
        ({"sampling": {"max_tokens": 2, "min_tokens": 3}}, "min_tokens"),
        ({"sampling": {"logprobs": 21}}, "logprobs"),
        ({"sampling": {"logprobs": -1}}, "logprobs"),
        ({"sampling": {"stop": [""]}}, "stop.0"),
        ({"sampling": {"stop": ["a"] * 65}}, "stop"),
        ({"sampling": {"logit_bias": {-1: 1.0}}}, "logit_bias"),
        ({"sampling": {"logit_bias": {1: 101.0}}}, "logit_bias"),
        ({"sampling": {"truncate_prompt_tokens": 0}}, "truncate_prompt_tokens"),
    ],
)
def test_limits_are_those_of_rest(arguments: dict[str, Any], param: str) -> None:
    assert refusal(**arguments).param.startswith(param)


@pytest.mark.parametrize(
    ("param", "field"),
    [
        ("temperature", "sampling_params.temperature"),
        ("stop.0", "sampling_params.stop.0"),
        ("request_id", "request_id"),
        ("stream", "stream"),
        ("prompt", "text"),
        ("", ""),
    ],
)
def test_errors_name_the_path_of_the_field(param: str, field: str) -> None:
    assert field_of(vllm.GenerateRequest(text="Hi"), param) == field


def test_the_field_of_the_prompt_is_the_one_in_use() -> None:
    assert field_of(vllm.GenerateRequest(tokenized=vllm.TokenizedInput()), "prompt") == "tokenized.input_ids"
    assert field_of(vllm.GenerateRequest(), "prompt") == "input"
    assert field_of(vllm.GetLoadsRequest(), "dp_rank") == "dp_rank"


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("stop_token_ids", [5] * 10**6, "stop_token_ids"),
        ("logit_bias", dict.fromkeys(range(10**5), 1.0), "logit_bias"),
        ("stop", ["a"] * 10**5, "stop"),
        ("choice", vllm.ChoiceConstraint(choices=["a"] * 10**5), "structured_outputs.choice"),
    ],
)
def test_lists_above_their_limits_are_not_converted(field: str, value: Any, param: str) -> None:
    request = vllm.GenerateRequest(text="a", sampling_params=vllm.SamplingParams(**{field: value}))
    began = time.thread_time()
    with pytest.raises(TandemError, match="items, but at most") as caught:
        checked_request(request, FACTS)
    assert time.thread_time() - began < 0.005
    assert caught.value.param == param
