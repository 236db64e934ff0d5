"""Updates of choices for the tests of answers, and what an answer says of each choice."""

from typing import Any

import msgspec

from services.rpc.generated import text_pb2
from services.shim.apis.answer import Answer, Json
from services.shim.apis.answer_options import AnswerOptions
from services.shim.generation import Generation


def make(kind: type[Answer], generation: Generation, **options: Any) -> Answer:
    """Returns an answer of model "fake". `options` are AnswerOptions'."""
    return kind("id-1", "fake", generation, AnswerOptions(**options))


def logprobs(token: str, value: float, *top: tuple[str, float], offset: int = 0) -> text_pb2.TokenLogprobs:
    """Returns the logprobs at one position. A token's id is that of its first byte."""

    def one(token: str, value: float) -> text_pb2.TokenLogprob:
        encoded = token.encode()
        return text_pb2.TokenLogprob(token=token, token_bytes=encoded, logprob=value, token_id=encoded[0])

    return text_pb2.TokenLogprobs(sampled=one(token, value), top=[one(*other) for other in top], text_offset=offset)


async def full_of(answer: Answer) -> Json:
    """Returns the full response, read from its JSON."""
    found: Json = msgspec.json.decode(b"".join(await answer.full_response()))
    return found


async def chunks_of(answer: Answer) -> list[Json]:
    """Returns the rest of a stream's chunks."""
    chunks = answer.first_chunks()
    while (more := await answer.next_chunks()) is not None:
        chunks += more
    return chunks
