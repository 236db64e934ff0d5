"""A prepared request as the request of /inference/v1/generate: vLLM's render routes answer with it.

What that request cannot say, as a call that is asked for by name, is refused: the answer would be another one.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from typing_extensions import TypedDict

from services.rpc.columns import ITEM_BYTES, unpack_f32, unpack_u32
from services.rpc.errors import TandemError, invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.apis.answer import Json
from services.shim.apis.json_pieces import InPieces, id_pieces, object_pieces
from services.shim.apis.numbers import as_written
from services.shim.apis.request import MAX_REQUEST_ID
from services.shim.bulk import Bulk
from services.shim.prepare import RequestFacts

# Set in a submit, these are what the fields of these names are there.
PLAIN = ("top_k", "max_tokens", "min_tokens", "ignore_eos", "logprobs", "prompt_logprobs")
FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
# Of an output specification, the prompt has these already, or they change no token.
IN_PROMPT = frozenset({"tools_json", "separate_reasoning"})
FORMS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "json_schema": ("json", lambda value: _json_or_text(value)),
    "structural_tag": ("structural_tag", lambda value: value.decode()),
    "json_object": ("json_object", lambda value: value),
    "regex": ("regex", lambda value: value),
    "grammar": ("grammar", lambda value: value),
    "choices": ("choice", lambda value: list(value.texts)),
}
FORM_SETTINGS = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")


class RenderedStreamOptions(TypedDict):
    include_usage: bool
    continuous_usage_stats: bool


class Rendered(TypedDict):
    """A request of /inference/v1/generate. `sampling_params` has the model's defaults written out."""

    request_id: str
    token_ids: list[int]
    assistant_tokens_mask: None
    token_offsets: None
    features: None
    sampling_params: dict[str, Any]
    model: str
    stream: bool
    stream_options: RenderedStreamOptions | None
    cache_salt: str | None
    priority: int
    kv_transfer_params: None


def sampling_params(submit: text_pb2.TextSubmit, bulk: Bulk, defaults: pb.SamplingParams) -> Json:
    """Returns the request's sampling parameters, and where it has none the model's `defaults`, as vLLM's object. They
    are all written out: another server may have other defaults. Raises TandemError (INVALID_ARGUMENT) for what it
    cannot say."""
    found: Json = {}
    if len(submit.choices) > 1:
        found["n"] = len(submit.choices)
    if submit.HasField("seed"):
        found["seed"] = submit.seed if submit.seed < 2**63 else submit.seed - 2**64
    return found | _sampling(submit.sampling, defaults) | _output(submit, bulk)


def rendered(
    request_id: str,
    facts: RequestFacts,
    submit: text_pb2.TextSubmit,
    sampling: Json,
    token_ids: bytes | bytearray,
    max_model_len: int,
) -> Iterator[bytes]:
    """Returns the request as JSON in pieces. `token_ids`: a column of little-endian u32; `sampling`: of
    sampling_params."""
    sampling.setdefault("max_tokens", max_model_len - len(token_ids) // ITEM_BYTES)
    options = {"include_usage": True, "continuous_usage_stats": facts.answer.continuous_usage}
    return object_pieces(
        {
            "request_id": request_id[:MAX_REQUEST_ID],
            "token_ids": InPieces(id_pieces(token_ids)),
            "assistant_tokens_mask": None,
            "token_offsets": None,
            "features": None,
            "sampling_params": sampling,
            "model": facts.model,
            "stream": facts.stream,
            "stream_options": options if facts.stream and facts.include_usage else None,
            "cache_salt": submit.cache_salt or None,
            "priority": submit.priority,
            "kv_transfer_params": None,
        }
    )


def _sampling(own: pb.SamplingParams, defaults: pb.SamplingParams) -> Json:
    found: Json = {}
    for descriptor, value in [*defaults.ListFields(), *own.ListFields()]:
        name = descriptor.name
        if name in PLAIN:
            found[name] = value
        elif name in FLOATS:
            found[name] = as_written(value)
        elif name == "stop_token_ids":
            found[name] = list(value)
        elif name in ("allowed_token_ids", "logprob_token_ids"):
            found[name] = unpack_u32(value)
        elif name == "logit_bias_token_ids":
            biases = map(as_written, unpack_f32(own.logit_biases))
            found["logit_bias"] = dict(zip(map(str, unpack_u32(value)), biases, strict=True))
        elif name != "logit_biases":
            raise _cannot_say(name)
    return found


def _output(submit: text_pb2.TextSubmit, bulk: Bulk) -> Json:
    output = submit.output
    if bulk.output:
        output = text_pb2.TextSubmit.FromString(bytes(bulk.output)).output
    found: Json = {}
    for descriptor, value in output.ListFields():
        name = descriptor.name
        if name in ("stop", "bad_words"):
            found[name] = list(value)
        elif name == "include_stop_str_in_output":
            found[name] = value
        elif name == "structured":
            found["structured_outputs"] = _form(value)
        elif name == "tool_choice" and value != text_pb2.TOOL_CHOICE_AUTO:
            raise _cannot_say(name)
        elif name not in ("skip_special_tokens", "spaces_between_special_tokens", "tool_choice", *IN_PROMPT):
            raise _cannot_say("parallel_tool_calls" if name == "single_tool_call" else name)
    for name in ("skip_special_tokens", "spaces_between_special_tokens"):
        if not getattr(output, name):
            found[name] = False
    return found


def _form(structured: text_pb2.StructuredOutput) -> Json:
    form = structured.WhichOneof("form")
    assert form is not None
    name, written = FORMS[form]
    settings = {setting: getattr(structured, setting) for setting in FORM_SETTINGS if getattr(structured, setting)}
    return {name: written(getattr(structured, form)), **settings}


def _json_or_text(value: bytes) -> Any:
    """Returns JSON as it is, and a text that is none as a text: its form is checked where it is used."""
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return value.decode(errors="replace")
    return msgspec.Raw(value)


def _cannot_say(name: str) -> TandemError:
    return invalid(f"{name} is not supported by this route: a request of /inference/v1/generate cannot have it", name)
