"""Values of every request field, accepted and refused, and the request that a test of one field starts from."""

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.output_limits import (
    MAX_CHOICE_CHARACTERS,
    MAX_CHOICE_TEXTS,
    MAX_GRAMMAR_CHARACTERS,
    MAX_REGEX_CHARACTERS,
    MAX_SCHEMA_BYTES,
    MAX_STOP_STRINGS,
)
from services.shim.apis.all import APIS
from services.shim.apis.api import Api
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.chat.schema import MAX_DOCUMENTS, MAX_TEMPLATE_CHARACTERS
from services.shim.apis.chat.tools import MAX_TOOLS
from services.shim.apis.completions.api import COMPLETIONS_API
from services.shim.apis.completions.schema import MAX_PROMPTS
from services.shim.apis.fields import kind_of
from services.shim.apis.request import MAX_METADATA, MAX_REQUEST_ID, GenerationRequest
from services.shim.apis.structured import StructuredFields
from services.shim.apis.structured_types import MAX_LABEL
from services.shim.apis.submit import SubmitContext
from services.shim.body import Body
from services.shim.parsing import validate
from tests.shim.harness import FACTS, LIMITS

Json = dict[str, Any]
# field, values that are accepted, values that are refused
Row = tuple[str, list[Any], list[Any]]
USER = {"role": "user", "content": "Hi"}
CHAT: Json = {"messages": [USER]}
TEXT: Json = {"prompt": "Hi"}
BASE: dict[str, Json] = {CHAT_API.path.path: CHAT, COMPLETIONS_API.path.path: TEXT}
TOOL = {"type": "function", "function": {"name": "f"}}
NAMES = [api.request.__name__ for api in APIS]
each_api = pytest.mark.parametrize("api", APIS, ids=NAMES)
# Names of pydantic's types, of our classes and of Python's: nothing that a client has written.
INTERNAL = ("list[", "constrained", "function-", "model_", "_type", "TextPart", "ChatMessage", "dictionary", "pydantic")
MOST_STOP_IDS = [1] * LIMITS.max_stop_token_ids
VOCABULARY = list(range(FACTS.vocab_size))
LABEL: tuple[list[Any], list[Any]] = (["", "a", "a" * MAX_LABEL], ["a" * (MAX_LABEL + 1), 5, []])
YES: tuple[list[Any], list[Any]] = ([True, False], [1, "yes", {}])
ONLY_NULL: tuple[list[Any], list[Any]] = ([None], [0, False, "", {}, [], "a", {"a": 1}])
NO_ENTRIES: tuple[list[Any], list[Any]] = ([{}], [{"a": 1}, [], 5])

SCHEMA: Json = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
TAG: Json = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
LONGEST_CHOICE = "a" * MAX_CHOICE_CHARACTERS
SCHEMAS: tuple[list[Any], list[Any]] = (
    [SCHEMA, {}, '{"type": "object"}'],
    [5, [], "", True, "a" * (MAX_SCHEMA_BYTES + 1), {"a": "a" * MAX_SCHEMA_BYTES}],
)
TAGS: tuple[list[Any], list[Any]] = (
    [TAG, TAG | {"type": "structural_tag"}, '{"structures": [], "triggers": []}'],
    [5, "", [], {}, {"format": {}}, TAG | {"format": {}}, TAG | {"triggers": []}, TAG | {"structures": []},
     TAG | {"type": "json"}, TAG | {"other": 1}, {**TAG, "structures": [{"begin": "<f>", "end": ""}]}],
)  # fmt: skip
REGEXES: tuple[list[Any], list[Any]] = (
    ["a*", "a" * MAX_REGEX_CHARACTERS],
    ["", "a" * (MAX_REGEX_CHARACTERS + 1), 5, {}],
)
GRAMMARS: tuple[list[Any], list[Any]] = (
    ['start: "a"', "a" * MAX_GRAMMAR_CHARACTERS],
    ["", "a" * (MAX_GRAMMAR_CHARACTERS + 1), 5, {}],
)
CHOICES: tuple[list[Any], list[Any]] = (
    [["a"], ["a"] * MAX_CHOICE_TEXTS, [LONGEST_CHOICE]],
    ["a", [], [""], [5], ["a"] * (MAX_CHOICE_TEXTS + 1), [LONGEST_CHOICE + "a"], [LONGEST_CHOICE] * 49],
)


def formats(good: list[Any], bad: list[Any]) -> tuple[list[Any], list[Any]]:
    """Returns the values of response_format with these schemas."""
    named: Json = {"name": "n", "schema": {}}
    return (
        [{"type": "text"}, {"type": "json_object", "json_schema": None}, TAG | {"type": "structural_tag"}]
        + [{"type": "json_schema", "json_schema": {"name": "n", "schema": one}} for one in good]
        + [{"type": "json_schema", "json_schema": named | {"strict": one, "description": "d"}} for one in (True, None)],
        ["text", 5, {}, [], {"type": "xml"}, {"type": 5}, {"type": "json_schema"}, {"type": "text", "other": 1}]
        + [{"type": "json_schema", "json_schema": {"name": "n", "schema": one}} for one in bad]
        + [
            {"type": "json_schema", "json_schema": {**named, "strict": 1}},
            {"type": "json_schema", "json_schema": {"schema": {}}},
        ]
        + [{"type": "json_object", "schema": {}}, TAG | {"type": "structural_tag", "format": {}}],
    )


def outputs(**forms: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
    """Returns the values of structured_outputs with these values of each form."""
    good = [{form: value} for form, (values, _) in forms.items() for value in values]
    bad = [{form: value} for form, (_, values) in forms.items() for value in values]
    settings: Json = {"disable_any_whitespace": True, "disable_additional_properties": True, "disable_fallback": True}
    return (
        [*good, {"json_object": True}, {"json": {}, **settings}, {"regex": "a", "json": None, "json_object": False}],
        [*bad, 5, "a", [], {}, {"json_object": False}, {"json": {}, "regex": "a"}, {"json": {}, "other": 1},
         {"regex": "a", "disable_any_whitespace": True}, {"choice": ["a"], "whitespace_pattern": " "},
         {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}],
    )  # fmt: skip


COMMON: list[Row] = [
    ("response_format", *formats([SCHEMA, {}, True], [5, "a", [], "{}", {"a": "a" * MAX_SCHEMA_BYTES}])),
    ("structured_outputs",
     *outputs(json=SCHEMAS, regex=REGEXES, choice=CHOICES, grammar=GRAMMARS, structural_tag=TAGS)),
    ("guided_json", *SCHEMAS),
    ("guided_regex", *REGEXES),
    ("guided_choice", *CHOICES),
    ("guided_grammar", *GRAMMARS),
    ("structural_tag", *TAGS),
    ("guided_whitespace_pattern", [], [" ", "", 5]),  # needs guided_json or structural_tag
    ("guided_decoding_backend", *LABEL),
    ("model", ["a"], [5, ["a"], True]),
    ("stream", [True, False], ["true", 1, {}]),
    ("n", [1, LIMITS.max_n], [0, -1, LIMITS.max_n + 1, 1.5, "1", True]),
    ("stop", ["a", ["a", "b"], [], ["a"] * MAX_STOP_STRINGS, "a" * 1024], [3, "", ["a"] * (MAX_STOP_STRINGS + 1), {}]),
    ("echo", *YES),
    ("max_tokens", [1, 2**31 - 1], [0, -1, 2**31, 1.0, "5", True]),
    ("min_tokens", [0, 1], [-1, 2**31, "1", 0.5]),
    ("temperature", [0, 0.0, 1, 2.0], [-0.1, 2.1, math.inf, math.nan, "1", True]),
    ("top_p", [0.001, 1], [0, -1, 1.001, math.nan, "1"]),
    ("top_k", [-1, 0, 1, 2**31 - 1], [-2, 2**31, 1.5, "1"]),
    ("min_p", [0, 1], [-0.1, 1.1, math.nan, "0"]),
    ("seed", [-(2**63), -1, 0, 2**63 - 1], [-(2**63) - 1, 2**63, 2**70, 1.5, "1", True]),
    ("presence_penalty", [-2, 2], [-2.1, 2.1, math.nan, "0"]),
    ("frequency_penalty", [-2, 2], [-2.1, 2.1, math.nan, "0"]),
    ("repetition_penalty", [0.1, 1e4], [0, -1, 1.1e4, math.inf, "1"]),
    ("logit_bias", [{}, {"0": -100, "49": 100.0}, {str(2**32 - 1): 1}],
     [[], 5, {"a": 1}, {"-1": 1}, {"1.5": 1}, {"": 1}, {" 1": 1}, {"1\n": 1}, {"1": "1"}, {"1": True}, {"1": None},
      {"1": -100.1}, {"1": 100.1}, {"1": math.nan}, {str(2**32): 1}, {"9" * 10: 1}, {"9" * 5000: 1}, {"\u0661": 1},
      {"1": 1, "01": 2}, {str(at): 1 for at in range(LIMITS.max_logit_bias + 1)}]),
    ("allowed_token_ids", [[0], [0, 2**32 - 1], VOCABULARY], [[], [*VOCABULARY, 1], 5, "5", {}]),
    ("bad_words", [[], ["a"], ["a"] * LIMITS.max_bad_words, ["a" * 1024]],
     ["a", 5, {}, ["a"] * (LIMITS.max_bad_words + 1)]),
    ("ignore_eos", *YES),
    ("stop_token_ids", [[], [0, 2**32 - 1], MOST_STOP_IDS], [5, "5", [*MOST_STOP_IDS, 1]]),
    ("include_stop_str_in_output", *YES),
    ("skip_special_tokens", *YES),
    ("spaces_between_special_tokens", *YES),
    ("truncate_prompt_tokens", [-1, 1, FACTS.max_model_len], [-2, FACTS.max_model_len + 1, 2**31, 1.5, "1", True]),
    ("truncation_side", ["left", "right"], ["both", "", 5, True]),
    ("return_token_ids", *YES),
    ("return_tokens_as_token_ids", *YES),
    ("return_effective_parameters", *YES),
    ("cache_salt", ["", "a" * 1024], ["a" * 1025, 5, []]),
    ("priority", [0, -(2**31), 2**31 - 1], [2**31, -(2**31) - 1, 0.5, "1", True]),
    ("request_id", ["a", "!~", "a" * MAX_REQUEST_ID],
     ["", "a" * (MAX_REQUEST_ID + 1), "a b", "a\n", "\xe9", "\x7f", 5, []]),
    ("user", *LABEL),
    ("store", [False], [True, 0, "no"]),
    ("metadata", [{}, {"a": "b"}, {str(at): "" for at in range(MAX_METADATA)}],
     [{str(at): "" for at in range(MAX_METADATA + 1)}, [], "a"]),
    ("service_tier", ["auto", "default"], ["flex", "priority", "", 5]),
    ("prompt_cache_key", *LABEL),
    ("prompt_cache_options", [{}, {"ttl": "1h"}], ["k", 5, []]),
    ("prompt_cache_retention", *LABEL),
    ("safety_identifier", *LABEL),
    ("session_id", *LABEL),
    ("best_of", [1], [0, 2, True, "1", 1.5]),
    ("use_beam_search", [False], [True, 0, "no"]),
    ("length_penalty", [1, 1.0], [0.9, 1.1, "1", math.nan]),
    ("prompt_logprobs", [0, LIMITS.max_logprobs], [-2, -1, LIMITS.max_logprobs + 1, True, "1", 1.5]),
    ("kv_transfer_params", *ONLY_NULL),
    ("vllm_xargs", *NO_ENTRIES),
    ("repetition_detection", *ONLY_NULL),
    ("stream_interval", [1], [0, 2, "1", True]),
]  # fmt: skip
CHAT_ONLY: list[Row] = [
    ("messages", [[USER], [USER, USER]], [[], {}, "Hi", 5]),
    ("max_completion_tokens", [1, 2**31 - 1], [0, -1, 2**31, 1.0, "5"]),
    ("logprobs", [True, False], [0, 1, 5, "true"]),
    ("top_logprobs", [0], [-2, -1, 1, LIMITS.max_logprobs + 1, True, "1", 1.5]),  # but for 0, it needs logprobs: true
    ("logprob_token_ids", [], [[1], [], 5]),  # needs logprobs: true
    ("tools", [[], [TOOL], [TOOL] * MAX_TOOLS], [{}, "f", [TOOL] * (MAX_TOOLS + 1)]),
    # Without tools, no call can be asked for.
    ("tool_choice", ["none", "auto"],
     ["required", "f", {"type": "function", "function": {"name": "f"}}, 5, {}, {"type": "custom"}, {"type": 5},
      {"type": "function", "function": {}}, {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}}]),
    ("parallel_tool_calls", *YES),
    ("functions", [[], [{"name": "f"}], [{}] * MAX_TOOLS], [["f"], {}, 5, [{}] * (MAX_TOOLS + 1)]),
    ("function_call", ["none", "auto"], ["required", "f", {"name": "f"}, {}, {"name": ""}, 5]),
    ("reasoning_effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"], ["", "very", 5, True]),
    ("include_reasoning", *YES),
    ("thinking_token_budget", [-1, 0, 1, 2**31 - 1], [-2, 2**31, 1.5, "1", True]),
    ("verbosity", ["low", "medium", "high"], ["", "very", 5, True]),
    ("documents", [[], [{"text": "a"}], [{}] * MAX_DOCUMENTS], [[{}] * (MAX_DOCUMENTS + 1), {}, "a", 5]),
    ("chat_template", ["", "{{ messages }}", "a" * MAX_TEMPLATE_CHARACTERS], ["a" * (MAX_TEMPLATE_CHARACTERS + 1), 5]),
    ("chat_template_kwargs", [{}, {"enable_thinking": False}],
     [[], "a", 5, {"messages": []}, {"tools": []}, {"documents": []}, {"chat_template": ""}]),
    ("add_generation_prompt", *YES),
    ("continue_final_message", [False], [1, "yes", True]),  # true needs add_generation_prompt: false
    ("add_special_tokens", *YES),
    ("modalities", [["text"], []], [["audio"], "text", ["text", "text"], 5]),
    ("prediction", [{}, {"type": "content", "content": "a"}], ["a", [], 5]),
    ("audio", *ONLY_NULL),
    ("moderation", *ONLY_NULL),
    ("web_search_options", *ONLY_NULL),
    ("media_io_kwargs", *NO_ENTRIES),
    ("mm_processor_kwargs", *NO_ENTRIES),
    ("return_prompt_text", [False], [True, 0, "no"]),
]  # fmt: skip
TEXT_ONLY: list[Row] = [
    ("prompt", ["", "Hi", ["a", "b"], [1, 2], [[1], [2]], ["a"] * MAX_PROMPTS], [5, [], {}, True]),
    ("logprobs", [0, LIMITS.max_logprobs], [-2, -1, LIMITS.max_logprobs + 1, True, "1"]),
    ("logprob_token_ids", [], [[1], [], 5]),  # needs logprobs
    ("add_special_tokens", *YES),
    ("suffix", ["", "after"], [5, ["a"]]),
    ("prompt_embeds", *ONLY_NULL),
    ("thinking_token_budget", *ONLY_NULL),
]
OWN: dict[str, list[Row]] = {CHAT_API.path.path: CHAT_ONLY, COMPLETIONS_API.path.path: TEXT_ONLY}


def rows_of(api: Api) -> list[Row]:
    return COMMON + OWN[api.path.path]


def fields_of_kind(kind: str) -> Iterator[tuple[Api, Row]]:
    """Yields the rows of all fields that are declared as "supported", "no-op" or "refused"."""
    for api in APIS:
        for row in rows_of(api):
            if kind_of(api.request.model_fields[row[0]]) == kind:
                yield api, row


def submits(api: Api, change: Json, facts: pb.EngineFacts = FACTS, **options: Any) -> list[text_pb2.TextSubmit]:
    """Returns the submits of the API's smallest request with these fields changed, as the endpoint makes them.

    `options` are SubmitContext's.
    """
    return submits_of_text(api, msgspec.json.encode(BASE[api.path.path] | change), facts, **options)


def submits_of_text(api: Api, text: bytes, facts: pb.EngineFacts = FACTS, **options: Any) -> list[text_pb2.TextSubmit]:
    body = Body(text)
    checked: GenerationRequest = validate(api.request, body.fields, facts)
    return api.translation.submits(checked, body, SubmitContext(facts, **options))


def refused(api: Api, change: Json, facts: pb.EngineFacts = FACTS) -> TandemError:
    """Returns the error for the API's smallest request with these fields changed. It may hold what JSON cannot."""
    return refused_body(api, BASE[api.path.path] | change, facts)


def refused_body(api: Api, fields: Json, facts: pb.EngineFacts = FACTS) -> TandemError:
    """Returns the error for these fields: that of the schema, or else of the submit."""
    with pytest.raises(TandemError) as caught:
        request: GenerationRequest = validate(api.request, fields, facts)
        forms = {name: fields[name] for name in StructuredFields.model_fields if name in fields}
        body = Body(msgspec.json.encode(BASE[api.path.path] | forms))
        api.translation.submits(request, body, SubmitContext(facts))
    found = caught.value
    assert (found.code, found.status.http) == ("INVALID_ARGUMENT", 400)
    assert not [word for word in INTERNAL if word in found.message], found.message
    return found
