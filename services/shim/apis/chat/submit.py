"""A chat request as a submit for the tokenizer, which renders the chat template and parses the answer."""

import msgspec

from services.rpc.generated import text_pb2
from services.shim.apis.chat.schema import ChatRequest
from services.shim.apis.chat.tools import functions_as_tools
from services.shim.apis.submit import SubmitContext, add_form, base_submit
from services.shim.apis.translation import Translation
from services.shim.body import Body

TOOL_CHOICES = {
    "auto": text_pb2.TOOL_CHOICE_AUTO,
    "required": text_pb2.TOOL_CHOICE_REQUIRED,
    "named": text_pb2.TOOL_CHOICE_NAMED,
}


def chat_submits(request: ChatRequest, body: Body, context: SubmitContext) -> list[text_pb2.TextSubmit]:
    """Returns the one submit of the request. Raises TandemError as `base_submit`.

    The chat template gets messages and tools as the client wrote them, with all their fields.
    """
    submit = base_submit(request, context)
    kwargs = request.template_kwargs
    chat = submit.chat
    chat.messages_json = body.json("messages")
    chat.template_kwargs_json = msgspec.json.encode(kwargs) if kwargs else b""
    chat.documents_json = body.json("documents") if request.documents is not None else b""
    chat.chat_template = request.chat_template or ""
    chat.add_generation_prompt = request.add_generation_prompt
    chat.continue_final_message = request.continue_final_message
    chat.add_special_tokens = request.add_special_tokens
    submit.output.separate_reasoning = True
    submit.output.lead = request.echoed_text(context.response_role)
    if request.thinking_token_budget is not None and request.thinking_token_budget >= 0:
        submit.output.thinking_token_budget = request.thinking_token_budget
    add_form(submit.output, request.structured_output(body))
    _add_tools(submit.output, request, body, context)
    return [submit]


def _add_tools(output: text_pb2.OutputSpec, request: ChatRequest, body: Body, context: SubmitContext) -> None:
    """Sets the tools and what becomes of calls. Without calls the prompt has the tools all the same, as in vLLM,
    unless the server hides them."""
    if not request.has_tools:
        return
    if request.call_mode != "none":
        output.tool_choice = TOOL_CHOICES[request.call_mode]
        output.single_tool_call = not request.parallel_tool_calls or request.older_function_call
        output.allowed_tools.extend(request.named_tools)
    elif context.exclude_tools_when_tool_choice_none:
        return
    older = request.older_function_call
    output.tools_json = functions_as_tools(body.json("functions")) if older else body.json("tools")


CHAT_TRANSLATION = Translation("chat", ChatRequest, chat_submits)
