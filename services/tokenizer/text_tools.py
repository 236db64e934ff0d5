"""Tokenize, Detokenize and Render: what programs ask the tokenizer for besides generating."""

import asyncio

from services.rpc.errors import invalid
from services.rpc.generated import text_pb2
from services.tokenizer.prompt_encoder import PromptEncoder
from services.tokenizer.unreadable import refusing_unreadable
from services.tokenizer.vocabulary import Vocabulary

MAX_IDS = 2**20  # of one Detokenize call
INLINE_IDS = 1000  # more ids are decoded in a thread


class TextTools:
    def __init__(self, vocabulary: Vocabulary, encoder: PromptEncoder) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder

    async def tokenize(self, request: text_pb2.TokenizeRequest) -> text_pb2.TokenizeResponse:
        """Returns the token ids of messages or text. Raises TandemError as PromptEncoder.encode, also for what that
        cannot read."""
        submit = text_pb2.TextSubmit(output=text_pb2.OutputSpec(tools_json=request.tools_json))
        kind = request.WhichOneof("input")
        if kind is not None:
            getattr(submit, kind).CopyFrom(getattr(request, kind))
        with refusing_unreadable():
            token_ids = await self._encoder.encode(submit)
        tokens = map(self._vocabulary.token_bytes, token_ids) if request.return_tokens else ()
        return text_pb2.TokenizeResponse(token_ids=token_ids, tokens=tokens)

    async def detokenize(self, request: text_pb2.DetokenizeRequest) -> text_pb2.DetokenizeResponse:
        """Returns the text of token ids. Raises TandemError (INVALID_ARGUMENT) for an id without a token and for more
        than MAX_IDS ids."""
        token_ids = list(request.token_ids)
        if len(token_ids) > MAX_IDS:
            raise invalid(f"token_ids: {len(token_ids)} ids, but at most {MAX_IDS}", "token_ids")
        arguments = (token_ids, request.skip_special_tokens)
        decode = self._vocabulary.decode
        text = decode(*arguments) if len(token_ids) <= INLINE_IDS else await asyncio.to_thread(decode, *arguments)
        return text_pb2.DetokenizeResponse(text=text)

    async def render(self, request: text_pb2.RenderRequest) -> text_pb2.RenderResponse:
        """Returns the text of messages. Raises TandemError as PromptEncoder.render, also for what that cannot read."""
        with refusing_unreadable():
            text = await self._encoder.render(request.chat, request.tools_json)
        return text_pb2.RenderResponse(text=text)
