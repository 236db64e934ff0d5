"""Translates a checked request into submits for a tokenizer, one per prompt."""

from collections.abc import Callable
from typing import Any

import msgspec

from services.rpc.columns import pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.schema import ChatRequest, CompletionRequest, GenerationRequest

NewHandle = Callable[[], int]


def chat_submit(
    request: ChatRequest, raw: dict[str, Any], request_id: str, new_handle: NewHandle
) -> text_pb2.TextSubmit:
    """Returns the request's submit, with a handle of `new_handle` per choice.

    `raw` is the parsed body: the chat template gets messages and tools with all their fields. With tool_choice "none"
    it gets no tools.
    """
    submit = _submit(request, request_id, new_handle)
    submit.chat.messages_json = _json(raw["messages"])
    submit.chat.tools_json = _json(raw["tools"]) if request.tools and request.tool_choice != "none" else ""
    submit.chat.template_kwargs_json = _json(request.chat_template_kwargs) if request.chat_template_kwargs else ""
    submit.chat.add_generation_prompt = request.add_generation_prompt
    submit.chat.continue_final_message = request.continue_final_message
    return submit


def completion_submits(request: CompletionRequest, request_id: str, new_handle: NewHandle) -> list[text_pb2.TextSubmit]:
    submits = []
    for prompt in request.prompts:
        submit = _submit(request, request_id, new_handle)
        if isinstance(prompt, str):
            submit.text.text = prompt
            submit.text.add_special_tokens = request.add_special_tokens
        else:
            submit.prompt_token_ids = pack_u32(prompt)
        submits.append(submit)
    return submits


def _submit(request: GenerationRequest, request_id: str, new_handle: NewHandle) -> text_pb2.TextSubmit:
    return text_pb2.TextSubmit(
        request_id=request_id,
        seed=request.seed,
        choices=[pb.Choice(handle=new_handle(), choice=choice) for choice in range(request.n)],
        sampling=pb.SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            repetition_penalty=request.repetition_penalty,
            max_tokens=request.token_limit,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop_token_ids=request.stop_token_ids,
            logprobs=request.num_logprobs,
        ),
        cache_salt=request.cache_salt,
        priority=request.priority,
        stop=request.stop_strings,
        include_stop_str_in_output=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
