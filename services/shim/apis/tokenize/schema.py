"""The requests of /tokenize, for text and for chats, and of /detokenize.

A text or chat has its own API's fields about the prompt, so that its tokens are those of a prompt.
https://docs.vllm.ai/en/latest/serving/openai_compatible_server/
"""

from typing import Annotated

from pydantic import Field

from services.shim.apis.body_form import BodyForm
from services.shim.apis.chat.schema import ChatRequest
from services.shim.apis.completions.schema import CompletionRequest
from services.shim.apis.fields import supported
from services.shim.apis.request import FailFastList, GenerationRequest, TokenId

MAX_DECODED = 2**20  # ids
TOKEN_STRS = "The response has each token as the vocabulary writes it."


class TokenizeRequest(CompletionRequest):
    prompt: str = supported(..., "Text. It may be longer than the context.")
    return_token_strs: bool = supported(False, TOKEN_STRS)

    @property
    def shows_token_strs(self) -> bool:
        return self.return_token_strs


class TokenizeChatRequest(ChatRequest):
    return_token_strs: bool = supported(False, TOKEN_STRS)

    @property
    def shows_token_strs(self) -> bool:
        return self.return_token_strs


class DetokenizeRequest(GenerationRequest):
    logprobs_field = "logprobs"

    tokens: Annotated[FailFastList[TokenId], Field(max_length=MAX_DECODED)] = supported(
        ..., "Token ids. Special tokens appear in the text."
    )

    @property
    def num_logprobs(self) -> int | None:
        return None


TOKENIZE_FORM = BodyForm(frozenset({"model", "prompt", "add_special_tokens", "return_token_strs"}))
TOKENIZE_CHAT_FORM = BodyForm(
    frozenset(
        {
            *("model", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
            *("add_special_tokens", "chat_template", "chat_template_kwargs", "return_token_strs"),
            *("media_io_kwargs", "mm_processor_kwargs"),
        }
    )
)
DETOKENIZE_FORM = BodyForm(frozenset({"model", "tokens"}))
