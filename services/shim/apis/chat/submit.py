"""A chat request as a submit for the tokenizer, which renders the chat template."""

import msgspec

from services.rpc.generated import text_pb2
from services.shim.apis.chat.schema import ChatRequest
from services.shim.apis.submit import SubmitContext, base_submit
from services.shim.body import Body


def chat_submits(request: ChatRequest, body: Body, context: SubmitContext) -> list[text_pb2.TextSubmit]:
    """Returns the one submit of the request. Raises TandemError as `base_submit`.

    The chat template gets messages and tools as the client wrote them, with all their fields. With tool_choice "none"
    it gets no tools.
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
    if request.tools and request.tool_choice != "none":
        submit.output.tools_json = body.json("tools")
    return [submit]
