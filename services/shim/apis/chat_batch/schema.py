"""The request of /v1/chat/completions/batch: a chat's fields, but several conversations with one answer each.

As in vLLM, without streams, tools and several answers to a conversation.
"""

from typing import Annotated, Any

from pydantic import Field

from services.rpc.errors import invalid
from services.shim.apis.chat.messages import NEEDS_CONTENT, ChatMessage
from services.shim.apis.chat.schema import ChatRequest
from services.shim.apis.fields import OnlyFalse, OnlyOne, OnlyTrue, refused, supported
from services.shim.apis.request import FailFastList

MAX_CONVERSATIONS = 1024
Conversation = Annotated[FailFastList[ChatMessage], Field(min_length=1)]
NoItems = Annotated[list[Any], Field(max_length=0)]


class ChatBatchRequest(ChatRequest):
    messages: Annotated[FailFastList[Conversation], Field(min_length=1, max_length=MAX_CONVERSATIONS)] = supported(  # type: ignore[assignment]
        ..., f"Up to {MAX_CONVERSATIONS} conversations. Choice 0 answers the first one, and so on."
    )
    stream: OnlyFalse = refused(False, "A stream of several answers.")
    n: OnlyOne = refused(1, "Several answers to each conversation.")
    tools: NoItems | None = refused(None, "Tools.")
    functions: NoItems = refused([], "Tools.")
    echo: OnlyFalse = refused(False, "Prompts in the answers.")
    prompt_logprobs: None = refused(None, "Logprobs of prompts.")
    add_generation_prompt: OnlyTrue = refused(True, "Prompts without the header of the answer.")

    def _check_content(self) -> None:
        for number, conversation in enumerate(self.messages):
            for index, message in enumerate(conversation):
                if message.content is None and message.role in NEEDS_CONTENT:
                    path = f"messages.{number}.{index}"
                    raise invalid(f"{path}: a message with role {message.role} needs content", f"{path}.content")
