"""The part of a submit that all APIs share: seeds, columns of token ids, logprobs of all tokens, truncation."""

import msgspec
import pytest

from services.rpc.columns import unpack_f32, unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.apis.api import Api
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.completions.api import COMPLETIONS_API
from tests.shim.apis.field_values import BASE, TOOL, Json, each_api, refused, submits, submits_of_text
from tests.shim.harness import FACTS, LIMITS


def submit(api: Api, change: Json, facts: pb.EngineFacts = FACTS) -> text_pb2.TextSubmit:
    (one,) = submits(api, change, facts)
    return one


def top_logprobs(api: Api, count: int) -> Json:
    return {"logprobs": True, "top_logprobs": count} if api is CHAT_API else {"logprobs": count}


@each_api
def test_a_request_that_asks_for_nothing(api: Api) -> None:
    """Sends the model's defaults as absent; every column is empty."""
    found = submit(api, {})
    sampling = pb.SamplingParams()
    if api is COMPLETIONS_API:
        sampling.max_tokens = 16
    assert found.sampling == sampling
    expected = text_pb2.OutputSpec(skip_special_tokens=True, spaces_between_special_tokens=True)
    expected.separate_reasoning = api is CHAT_API
    assert found.output == expected
    assert not found.HasField("seed") and not found.HasField("truncation") and not found.return_sampling
    assert (found.cache_group, found.cache_salt, found.priority, len(found.choices)) == ("", "", 0, 1)


@each_api
def test_the_group_of_the_key_goes_beside_the_clients_salt(api: Api) -> None:
    (found,) = submits(api, {"cache_salt": "salt"}, cache_group="group")
    assert (found.cache_group, found.cache_salt) == ("group", "salt")
    assert refused(api, {"cache_group": "another"}).param == "cache_group", "a client cannot name a group"


@each_api
@pytest.mark.parametrize(
    ("seed", "sent"), [(-1, None), (0, 0), (7, 7), (2**63 - 1, 2**63 - 1), (-2, 2**64 - 2), (-(2**63), 2**63)]
)
def test_seeds(api: Api, seed: int, sent: int | None) -> None:
    """-1 is vLLM's word for none; other negative ones are seeds of their own."""
    found = submit(api, {"seed": seed})
    assert (found.seed if found.HasField("seed") else None) == sent


@each_api
def test_logit_bias_becomes_columns(api: Api) -> None:
    sampling = submit(api, {"logit_bias": {"30": -100, "2": 0.5, "0": 100.0}}).sampling
    assert unpack_u32(sampling.logit_bias_token_ids) == [30, 2, 0]
    assert unpack_f32(sampling.logit_biases) == [-100.0, 0.5, 100.0]


@each_api
def test_an_id_that_logit_bias_has_twice_keeps_its_last_value(api: Api) -> None:
    """As in every JSON object. The engine would refuse a column with an id twice."""
    text = msgspec.json.encode(BASE[api.path.path])[:-1] + b',"logit_bias":{"5":1,"5":2}}'
    (found,) = submits_of_text(api, text)
    assert unpack_u32(found.sampling.logit_bias_token_ids) == [5] and unpack_f32(found.sampling.logit_biases) == [2.0]


@each_api
def test_lists_of_ids_become_columns(api: Api) -> None:
    fields = {"allowed_token_ids": [3, 1, 2**32 - 1], "logprob_token_ids": [9, 8], **top_logprobs(api, 0)}
    sampling = submit(api, fields).sampling
    assert unpack_u32(sampling.allowed_token_ids) == [3, 1, 2**32 - 1]
    assert unpack_u32(sampling.logprob_token_ids) == [9, 8]


@each_api
def test_the_output_specification(api: Api) -> None:
    fields: Json = {
        "stop": ["a", "b"], "bad_words": ["c", " d"], "include_stop_str_in_output": True, "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }  # fmt: skip
    found = submit(api, fields).output
    expected = text_pb2.OutputSpec(stop=["a", "b"], bad_words=["c", " d"], include_stop_str_in_output=True)
    expected.separate_reasoning = api is CHAT_API
    assert found == expected
    assert list(submit(api, {"stop": "END"}).output.stop) == ["END"]


@each_api
def test_logprobs_of_all_tokens(api: Api) -> None:
    """-1 becomes the size of the vocabulary; without --max-logprobs -1 it is refused."""
    error = refused(api, top_logprobs(api, -1))
    name = api.request.logprobs_field
    assert error.param == name
    assert error.message == f"{name} is -1, but at most {LIMITS.max_logprobs} are allowed; see --max-logprobs"
    facts = pb.EngineFacts()
    facts.CopyFrom(FACTS)
    facts.limits.max_logprobs = facts.vocab_size
    for count in (-1, facts.vocab_size):
        assert submit(api, top_logprobs(api, count), facts).sampling.logprobs == facts.vocab_size
    assert refused(api, top_logprobs(api, facts.vocab_size + 1), facts).param == name


@each_api
def test_numbers_of_logprobs(api: Api) -> None:
    assert not submit(api, {}).sampling.HasField("logprobs")
    for count in (0, 1, LIMITS.max_logprobs):
        found = submit(api, top_logprobs(api, count)).sampling
        assert found.HasField("logprobs") and found.logprobs == count


def test_echo_asks_for_the_logprobs_of_the_prompt() -> None:
    found = submit(COMPLETIONS_API, {"echo": True, "logprobs": 2, "max_tokens": 0})
    assert (found.sampling.prompt_logprobs, found.sampling.max_tokens) == (2, 1)
    assert found.output.echo and found.output.prompt_only
    assert submit(COMPLETIONS_API, {"echo": True, "logprobs": 2, "prompt_logprobs": 3}).sampling.prompt_logprobs == 3
    assert not submit(COMPLETIONS_API, {"echo": True}).sampling.HasField("prompt_logprobs")
    assert refused(COMPLETIONS_API, {"max_tokens": 0}).param == "max_tokens"


def test_a_chat_echoes_a_last_message_of_the_answers_role() -> None:
    def lead(role: str, content: object, **fields: object) -> str:
        messages = [{"role": "user", "content": "Hi"}, {"role": role, "content": content}]
        return str(submit(CHAT_API, {"messages": messages, "echo": True, **fields}).output.lead)

    assert lead("assistant", "I am") == "I am" and lead("user", "You") == ""
    parts = ["One", {"type": "text", "text": "two"}, {"type": "refusal", "refusal": "three"}]
    assert lead("assistant", parts) == "One\ntwo\nthree" and lead("assistant", None) == ""
    assert lead("user", "You", add_generation_prompt=False) == "You", "the answer has the last message's role"


@each_api
def test_truncation(api: Api) -> None:
    found = submit(api, {"truncate_prompt_tokens": 5}).truncation
    assert (found.max_tokens, found.drop_end) == (5, False)
    found = submit(api, {"truncate_prompt_tokens": 5, "truncation_side": "right"}).truncation
    assert (found.max_tokens, found.drop_end) == (5, True)
    found = submit(api, {"truncate_prompt_tokens": -1, "truncation_side": "left"}).truncation
    assert not found.HasField("max_tokens") and not found.drop_end
    assert submit(api, {"truncate_prompt_tokens": -1}).HasField("truncation")
    assert not submit(api, {"truncation_side": "right"}).HasField("truncation"), "nothing is shortened"
    submit(api, {"truncate_prompt_tokens": FACTS.max_model_len - 1})
    error = refused(api, {"truncate_prompt_tokens": FACTS.max_model_len})
    assert error.param == "truncate_prompt_tokens"
    assert error.message == "truncate_prompt_tokens is 64, but this model's maximum context length is 64 tokens"


@each_api
def test_choices_are_numbered(api: Api) -> None:
    assert [choice.choice for choice in submit(api, {"n": 3}).choices] == [0, 1, 2]


def test_prompts_have_submits_of_their_own() -> None:
    found = submits(COMPLETIONS_API, {"prompt": ["a", "b"], "n": 2, "logit_bias": {"3": 1}, "seed": 5})
    assert [one.text.text for one in found] == ["a", "b"]
    assert [choice.choice for one in found for choice in one.choices] == [0, 1, 0, 1]
    assert [one.seed for one in found] == [5, 5]
    assert found[0].sampling == found[1].sampling


# field, a value that has an effect, fields that it needs; where it shows
EFFECTS: dict[str, tuple[object, Json]] = {
    "n": (2, {}), "stop": ("a", {}), "max_tokens": (5, {}), "min_tokens": (2, {}), "temperature": (0.5, {}),
    "top_p": (0.5, {}), "top_k": (5, {}), "min_p": (0.5, {}), "seed": (5, {}), "presence_penalty": (1, {}),
    "frequency_penalty": (1, {}), "repetition_penalty": (1.5, {}), "logit_bias": ({"1": 1}, {}),
    "allowed_token_ids": ([1], {}), "bad_words": (["a"], {}), "ignore_eos": (True, {}), "stop_token_ids": ([1], {}),
    "include_stop_str_in_output": (True, {}), "skip_special_tokens": (False, {}),
    "spaces_between_special_tokens": (False, {}), "truncate_prompt_tokens": (5, {}),
    "truncation_side": ("right", {"truncate_prompt_tokens": 5}), "return_effective_parameters": (True, {}),
    "cache_salt": ("a", {}), "priority": (1, {}), "response_format": ({"type": "json_object"}, {}),
    "structured_outputs": ({"regex": "a"}, {}), "guided_json": ({}, {}), "guided_regex": ("a", {}),
    "guided_choice": (["a"], {}), "guided_grammar": ('start: "a"', {}), "structural_tag": ("{}", {}),
    "guided_whitespace_pattern": (" ", {"guided_json": {}}), "prompt_logprobs": (0, {}),
}  # fmt: skip
CHAT_EFFECTS: dict[str, tuple[object, Json]] = {
    "messages": ([{"role": "user", "content": "other"}], {}), "max_completion_tokens": (5, {}), "logprobs": (True, {}),
    "top_logprobs": (2, {"logprobs": True}), "logprob_token_ids": ([1], {"logprobs": True}),
    "tools": ([TOOL], {}), "tool_choice": ("none", {"tools": [TOOL]}),
    "parallel_tool_calls": (False, {"tools": [TOOL]}), "functions": ([{"name": "f"}], {}),
    "function_call": ("none", {"functions": [{"name": "f"}]}), "thinking_token_budget": (0, {}),
    "reasoning_effort": ("low", {}), "verbosity": ("low", {}), "documents": ([{}], {}), "chat_template": ("x", {}),
    "chat_template_kwargs": ({"a": 1}, {}), "add_generation_prompt": (False, {}),
    "continue_final_message": (True, {"add_generation_prompt": False}), "add_special_tokens": (True, {}),
    "echo": (True, {"messages": [{"role": "assistant", "content": "I"}]}),
}  # fmt: skip
TEXT_EFFECTS: dict[str, tuple[object, Json]] = {
    "prompt": ("other", {}), "logprobs": (0, {}), "logprob_token_ids": ([1], {"logprobs": 0}),
    "add_special_tokens": (False, {}), "suffix": ("after", {}), "echo": (True, {}),
}  # fmt: skip
# Supported fields that the tokenizer does not need: tests/shim/test_endpoints.py, test_endpoint_options.py.
IN_THE_RESPONSE = {
    "model", "stream", "stream_options", "return_token_ids", "return_tokens_as_token_ids", "request_id",
}  # fmt: skip
IN_THE_CHAT = {"include_reasoning"}  # tests/shim/apis/chat/test_answer.py


@each_api
def test_every_supported_field_reaches_the_tokenizer(api: Api) -> None:
    effects = EFFECTS | (CHAT_EFFECTS if api is CHAT_API else TEXT_EFFECTS)
    supported = {
        name for name, field in api.request.model_fields.items() if field.json_schema_extra == {"x-tandem": "supported"}
    }
    assert effects.keys() | IN_THE_RESPONSE | (IN_THE_CHAT if api is CHAT_API else set()) == supported
    for name, (value, needs) in effects.items():
        assert submits(api, {**needs, name: value}) != submits(api, needs), name
