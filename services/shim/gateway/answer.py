"""Turns updates into vLLM's GenerateResponse: chunks and a Complete per choice, or one Complete with everything."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

from smg_grpc_proto import vllm_engine_pb2 as vllm

from services.rpc.columns import unpack_u32
from services.rpc.errors import TandemError
from services.rpc.finish_reasons import NAME_BY_REASON
from services.rpc.generated import text_pb2
from services.rpc.response_mailbox import MAX_ENTRIES, check_answer_size
from services.shim.apis.numbers import finite
from services.shim.generation import Generation
from services.shim.updates import Update


async def streamed(
    generation: Generation, pause: Callable[[int], Awaitable[None]]
) -> AsyncGenerator[vllm.GenerateResponse]:
    """Yields the new tokens of each choice as they come, and its Complete, without tokens, at its end.

    After N responses in a row, awaits `pause(N)`: tokens that come meanwhile merge into the next chunk of their choice.
    Raises the TandemError of a failed choice.
    """
    num_open = generation.num_choices
    while num_open:
        num_responses = 0
        for update in await generation.take():
            terminal = _checked(update)
            for chunk in _chunks(generation, update):
                num_responses += 1
                yield vllm.GenerateResponse(chunk=chunk)
            if terminal is not None:
                num_open -= 1
                yield vllm.GenerateResponse(complete=_complete(update.index, terminal))
            if update.held:
                generation.hold(-update.held)
        if num_open:
            await pause(num_responses)


async def whole(generation: Generation) -> AsyncGenerator[vllm.GenerateResponse]:
    """Yields, once all choices have ended, the Complete of each one with all its tokens, in the order of the choices.

    Raises the TandemError of a failed choice, and one (INVALID_ARGUMENT) for an answer too large for a message.
    """
    answers = [Update(index) for index in range(generation.num_choices)]
    while any(answer.terminal is None for answer in answers):
        for update in await generation.take():
            answer = answers[update.index]
            answer.terminal = _checked(update)
            answer.token_ids += update.token_ids
            answer.logprobs += update.logprobs
    for answer in answers:
        assert answer.terminal is not None
        complete = _complete(answer.index, answer.terminal)
        complete.output_ids.extend(unpack_u32(answer.token_ids))
        if answer.logprobs:
            complete.output_logprobs.CopyFrom(_logprobs(answer.logprobs))
        check_answer_size(complete)
        yield vllm.GenerateResponse(complete=complete)


def _checked(update: Update) -> text_pb2.TextTerminal | None:
    """Returns the update's terminal message. Raises its error, if it has one."""
    if update.terminal is not None and update.terminal.HasField("error"):
        raise TandemError.from_proto(update.terminal.error)
    return update.terminal


def _chunks(generation: Generation, update: Update) -> Iterator[vllm.GenerateStreamChunk]:
    """Yields the update's tokens, mostly in one chunk: each has at most MAX_ENTRIES ids and logprobs, or one token.

    `completion_tokens` counts the tokens of the chunk, as vLLM's does.
    """
    (call,) = generation.calls
    token_ids = unpack_u32(update.token_ids)
    width = 2 + len(update.logprobs[0].top) if update.logprobs else 1
    count = max(1, MAX_ENTRIES // width)
    for start in range(0, len(token_ids), count):
        ids, logprobs = token_ids[start : start + count], update.logprobs[start : start + count]
        yield vllm.GenerateStreamChunk(
            token_ids=ids,
            prompt_tokens=call.num_prompt_tokens,
            completion_tokens=len(ids),
            cached_tokens=call.num_cached_tokens,
            output_logprobs=_logprobs(logprobs) if logprobs else None,
            index=update.index,
        )


def _complete(index: int, terminal: text_pb2.TextTerminal) -> vllm.GenerateComplete:
    complete = vllm.GenerateComplete(
        finish_reason=NAME_BY_REASON[terminal.reason],
        prompt_tokens=terminal.prompt_tokens,
        completion_tokens=terminal.output_tokens,
        cached_tokens=terminal.cached_tokens,
        index=index,
    )
    if terminal.HasField("stop_string"):
        complete.matched_stop_str = terminal.stop_string
    elif terminal.HasField("stop_token_id"):
        complete.matched_token_id = terminal.stop_token_id
    return complete


def _logprobs(tokens: Sequence[text_pb2.TokenLogprobs]) -> vllm.OutputLogProbs:
    """Returns one entry per token. `top_logprobs` is empty if none were asked for, as vLLM's is."""
    tops = [
        vllm.TopLogProbs(
            values=[finite(one.logprob) for one in token.top], token_ids=[one.token_id for one in token.top]
        )
        for token in tokens
    ]
    return vllm.OutputLogProbs(
        token_logprobs=[finite(token.sampled.logprob) for token in tokens],
        token_ids=[token.sampled.token_id for token in tokens],
        top_logprobs=tops if any(token.top for token in tokens) else [],
    )
