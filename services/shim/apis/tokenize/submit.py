"""Requests of /tokenize and /detokenize as submits, of which the tokenizer reads the prompt only."""

from services.rpc.columns import pack_u32
from services.rpc.generated import text_pb2
from services.shim.apis.chat.submit import chat_submits
from services.shim.apis.completions.submit import completion_submits
from services.shim.apis.submit import SubmitContext
from services.shim.apis.tokenize.schema import (
    DETOKENIZE_FORM,
    TOKENIZE_CHAT_FORM,
    TOKENIZE_FORM,
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from services.shim.apis.translation import Alternatives, Translation
from services.shim.body import Body


def detokenize_submits(request: DetokenizeRequest, body: Body, context: SubmitContext) -> list[text_pb2.TextSubmit]:
    return [text_pb2.TextSubmit(prompt_token_ids=pack_u32(request.tokens))]


TOKENIZE_TRANSLATION = Alternatives(
    "tokenize",
    (
        ("messages", Translation("tokenize_chat", TokenizeChatRequest, chat_submits, TOKENIZE_CHAT_FORM)),
        ("prompt", Translation("tokenize_text", TokenizeRequest, completion_submits, TOKENIZE_FORM)),
    ),
)
DETOKENIZE_TRANSLATION = Translation("detokenize", DetokenizeRequest, detokenize_submits, DETOKENIZE_FORM)
