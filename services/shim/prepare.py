"""Turns the text of a body into submits, and into what else the endpoint needs of it. Pure: no link, no clock.

Nothing that was parsed outlives the call: a running request holds its submits alone. It runs on the event loop for a
small body, in a child process for a large one (preparer.py), with equal results.
"""

from dataclasses import dataclass, field

import msgspec

from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.apis.answer_options import AnswerOptions
from services.shim.apis.request import GenerationRequest
from services.shim.apis.submit import SubmitContext
from services.shim.apis.translation import AnyTranslation, Translation
from services.shim.body import Body
from services.shim.bulk import Bulk
from services.shim.logprob_entries import check_logprob_entries
from services.shim.models import known, served_name
from services.shim.parsing import check_submit_size, validate


@dataclass(frozen=True)
class PrepareOptions:
    """The options of the shim that a body is checked and translated with, by their names there."""

    ignore_unknown_fields: bool = False
    exclude_tools_when_tool_choice_none: bool = False
    response_role: str = "assistant"
    enable_force_include_usage: bool = False
    enable_prompt_tokens_details: bool = True
    max_logprob_entries: int = 0


class RequestFacts(msgspec.Struct, frozen=True):
    """What the endpoint needs of a checked request beside its submits. `translation` is the name of the one that made
    them, `model` a served name; `request_id` is the body's, if it has one. `num_bytes`: of all submits, on the wire."""

    translation: str
    model: str
    request_id: str | None
    stream: bool
    include_usage: bool
    answer: AnswerOptions
    num_bytes: int


@dataclass
class Prepared:
    """A checked request.

    `submits` lack request id, handles and traceparent: Generations.start sets them. `bulk` has the large fields of some
    submits, by their index, if they are kept in their serialized form.
    """

    facts: RequestFacts
    submits: list[text_pb2.TextSubmit]
    bulk: dict[int, Bulk] = field(default_factory=dict)


def prepare(
    translation: AnyTranslation,
    text: bytes | bytearray | memoryview,
    facts: pb.EngineFacts | None,
    options: PrepareOptions,
    cache_group: str = "",
) -> Prepared:
    """Returns the request in the body `text`. `facts` None: no tokenizer has connected yet. `cache_group`: as of
    SubmitContext.

    Raises TandemError: INVALID_ARGUMENT for what is wrong with it, NOT_FOUND for another model, UNAVAILABLE without
    facts, if nothing else is wrong.
    """
    body = Body(text)
    chosen = translation.of(body.fields)
    if chosen.form is None:
        return _prepared(chosen, body, facts, options, cache_group)
    chosen.form.shape(body, ignore_unknown_fields=options.ignore_unknown_fields)
    try:
        return _prepared(chosen, body, facts, options, cache_group)
    except TandemError as error:
        raise chosen.form.located(error) from error.__cause__


def _prepared(
    translation: Translation, body: Body, facts: pb.EngineFacts | None, options: PrepareOptions, cache_group: str
) -> Prepared:
    checked = validate(translation.request, body.fields, facts, options.ignore_unknown_fields)
    facts = known(facts)
    model = served_name(facts, checked.model)
    hides_tools = options.exclude_tools_when_tool_choice_none
    context = SubmitContext(facts, hides_tools, cache_group, options.response_role)
    submits = translation.submits(checked, body, context)
    check_logprob_entries(checked, submits, facts, options.max_logprob_entries)
    found = RequestFacts(
        translation=translation.name,
        model=model,
        request_id=checked.request_id,
        stream=checked.stream,
        include_usage=checked.include_usage or options.enable_force_include_usage,
        answer=_answer_options(checked, options),
        num_bytes=sum([check_submit_size(submit) for submit in submits]),
    )
    return Prepared(found, submits)


def _answer_options(checked: GenerationRequest, options: PrepareOptions) -> AnswerOptions:
    return AnswerOptions(
        token_ids=checked.return_token_ids,
        tokens_as_token_ids=checked.return_tokens_as_token_ids,
        effective_parameters=checked.return_effective_parameters,
        continuous_usage=checked.continuous_usage or options.enable_force_include_usage,
        prompt_tokens_details=options.enable_prompt_tokens_details,
        response_role=checked.role_of_answer(options.response_role),
        show_reasoning=checked.show_reasoning,
        older_function_call=checked.older_function_call,
        named_call=checked.named_call,
        token_strs=checked.shows_token_strs,
        prompt_logprobs=checked.prompt_logprobs is not None,
        echoes_logprobs=checked.echoes_logprobs,
    )
