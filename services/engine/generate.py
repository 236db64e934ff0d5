"""EngineService.Generate: a program's request becomes a submit, and what happens to its choices becomes responses."""

from engine_core.events import NewTokens
from engine_core.worker_messages import ModelFacts
from services.rpc.columns import ITEM_BYTES, pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.program_request import attempt_of, choices_of
from services.rpc.prompt_limits import check_num_ids
from services.rpc.response_mailbox import ResponseMailbox


def engine_entry(
    request: engine_pb2.GenerateTokensRequest, traceparent: str, max_n: int, max_model_len: int
) -> engine_pb2.EngineEntry:
    """Returns the submit that a tokenizer would send. Raises TandemError as choices_of and check_num_ids."""
    check_num_ids(len(request.prompt_token_ids), max_model_len, truncated=False)
    resume = request.resume
    seed = request.seed if request.HasField("seed") else None
    submit = engine_pb2.Submit(
        request_id=request.request_id,
        attempt=attempt_of(request),
        prompt_token_ids=pack_u32(request.prompt_token_ids),
        seed=resume.started.seed if resume.HasField("started") else seed,
        choices=choices_of(request, max_n, max_model_len),
        sampling=request.sampling,
        cache_salt=request.cache_salt,
        cache_group=request.cache_group,
        traceparent=traceparent,
        priority=request.priority,
        return_sampling=request.return_sampling,
        grammar=request.grammar,
    )
    return engine_pb2.EngineEntry(submit=submit)


class TokensMailbox(ResponseMailbox[engine_pb2.GenerateTokensResponse]):
    """The responses of one call. A choice's handle is its index."""

    def __init__(self, facts: ModelFacts, *, stream: bool) -> None:
        super().__init__(engine_pb2.GenerateTokensResponse, stream=stream)
        self._numerics_id = facts.numerics_id

    def put_accepted(self, accepted: engine_pb2.Accepted) -> None:
        started = self.started()
        if started is None:
            return
        started.seed, started.cached_tokens = accepted.seed, accepted.cached_tokens
        started.numerics_id = self._numerics_id
        if accepted.HasField("sampling"):
            started.sampling.CopyFrom(accepted.sampling)

    def put_prompt_logprobs(self, scored: pb.PromptLogprobs) -> None:
        self.add_prompt_logprobs(scored, len(scored.token_ids) // ITEM_BYTES)

    def put_tokens(self, handle: int, tokens: NewTokens) -> None:
        delta, num_entries = self.delta(handle), len(tokens.token_ids)
        delta.token_ids.extend(tokens.token_ids)
        if tokens.logprobs is not None:
            num_entries += len(tokens.logprobs.values)
            delta.logprob_width = tokens.logprobs.width
            delta.logprob_token_ids.extend(tokens.logprobs.token_ids)
            delta.logprobs.extend(tokens.logprobs.values)
        self.changed(num_entries)

    def put_terminal(self, terminal: engine_pb2.Terminal) -> None:
        delta = self.delta(terminal.handle)
        delta.finish_reason = terminal.reason
        if terminal.HasField("stop_token_id"):
            delta.stop_token_id = terminal.stop_token_id
        self.end(terminal)
