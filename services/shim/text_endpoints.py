"""The handlers of routes about prompts, at which nothing is generated: /tokenize, /detokenize, the render routes.

What they answer is vLLM's. https://docs.vllm.ai/en/latest/serving/openai_compatible_server/
"""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.shim.apis.api import Api
from services.shim.apis.json_pieces import InPieces, array_pieces, id_pieces, object_pieces
from services.shim.apis.tokenize.submit import DETOKENIZE_TRANSLATION, TOKENIZE_TRANSLATION
from services.shim.bulk import NO_BULK, Bulk
from services.shim.concurrency import hold_of
from services.shim.generations import Generations
from services.shim.prepare import Prepared
from services.shim.rendered import rendered, sampling_params
from services.shim.request_ids import request_id_of
from services.shim.request_reader import RequestReader
from services.shim.responses import JSON, until_disconnected, whole_response
from services.shim.routes import Handler
from services.shim.text_tools import Encoded, TextTools
from services.shim.time_slices import TimeSlices


class TextEndpoints:
    """One handler method per route; one object per process. A handler raises as those of Endpoints."""

    def __init__(self, generations: Generations, reader: RequestReader, tools: TextTools) -> None:
        self._generations = generations
        self._reader = reader
        self._tools = tools

    async def tokenize(self, request: Request) -> Response:
        """Returns the token ids of a text or a chat."""
        prepared = await self._reader.read(request, TOKENIZE_TRANSLATION, "tokenize")
        token_strs = prepared.facts.answer.token_strs
        (found,) = await self._encoded(request, prepared, any_length=True, token_strs=token_strs)
        strs = InPieces(_joined(found.token_strs, b"[", b",", b"]")) if token_strs else None
        return whole_response(
            object_pieces(
                {
                    "count": found.num_tokens,
                    "max_model_len": self._generations.facts().max_model_len,
                    "tokens": InPieces(id_pieces(found.token_ids)),
                    "token_strs": strs,
                }
            )
        )

    async def detokenize(self, request: Request) -> Response:
        """Returns the text of token ids."""
        prepared = await self._reader.read(request, DETOKENIZE_TRANSLATION, "detokenize")
        column = prepared.submits[0].prompt_token_ids
        decoding = self._tools.decode(column, hold_of(request.scope))
        try:
            text = await until_disconnected(request.receive, decoding)
        except TandemError as error:
            if error.param == "token_ids":  # the tokenizer's name for it
                error.message, error.param = error.message.replace("token_ids", "tokens", 1), "tokens"
            raise
        return whole_response(object_pieces({"prompt": InPieces(_joined(text, b'"', b"", b'"'))}))

    def render(self, api: Api, *, several: bool) -> Handler:
        """Returns the handler of a route that returns, instead of an answer, the request of /inference/v1/generate to
        which the answer would be the same; with `several` a list of them, one for each prompt."""

        async def handler(request: Request) -> Response:
            prepared = await self._reader.read(request, api.translation, "render")
            request_id = api.id_prefix + request_id_of(request, prepared.facts.request_id)
            facts = self._generations.facts()
            sampling, slices = [], TimeSlices()
            for submit, bulk in _with_bulk(prepared):
                sampling.append(sampling_params(submit, bulk, facts.default_sampling))
                await slices.pause()
            try:
                found = await self._encoded(request, prepared)
            except TandemError as error:
                raise api.at_fault(error) from None  # it may be the same one
            ids = [f"{request_id}-{index}" if several else request_id for index in range(len(found))]
            parts = zip(ids, prepared.submits, sampling, found, strict=True)
            pieces = [
                rendered(one_id, prepared.facts, submit, params, encoded.token_ids, facts.max_model_len)
                for one_id, submit, params, encoded in parts
            ]
            return whole_response(array_pieces(pieces) if several else pieces[0])

        return handler

    async def tokenizer_info(self, request: Request) -> Response:
        """Returns tokenizer_config.json, with the chat template in use."""
        return Response(await self._tools.tokenizer_config(), media_type=JSON)

    async def _encoded(
        self, request: Request, prepared: Prepared, *, any_length: bool = False, token_strs: bool = False
    ) -> list[Encoded]:
        """Returns the token ids of each submit's prompt. Raises TandemError as TextTools.encode, and ClientGone."""
        hold = hold_of(request.scope)

        async def all_of_them() -> list[Encoded]:
            return [
                await self._tools.encode(submit, bulk, hold, any_length=any_length, token_strs=token_strs)
                for submit, bulk in _with_bulk(prepared)
            ]

        return await until_disconnected(request.receive, all_of_them())


def _with_bulk(prepared: Prepared) -> Iterator[tuple[text_pb2.TextSubmit, Bulk]]:
    return ((submit, prepared.bulk.get(index, NO_BULK)) for index, submit in enumerate(prepared.submits))


def _joined(parts: list[bytes], before: bytes, between: bytes, after: bytes) -> Iterator[bytes]:
    yield before
    for index, part in enumerate(parts):
        if index and between:
            yield between
        yield part
    yield after
