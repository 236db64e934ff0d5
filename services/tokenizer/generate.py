"""TextService.Generate: a program's request becomes a submit, and what happens to its choices becomes responses."""

from services.rpc.columns import ITEM_BYTES, pack_u32, unpack_u32
from services.rpc.generated import text_pb2
from services.rpc.pieces import Piece, unpacked
from services.rpc.program_request import attempt_of, choices_of
from services.rpc.prompt_limits import check_num_ids
from services.rpc.response_mailbox import ResponseMailbox

DEFAULT_OUTPUT = text_pb2.OutputSpec(skip_special_tokens=True, spaces_between_special_tokens=True)


def text_entry(
    request: text_pb2.GenerateTextRequest, traceparent: str, max_n: int, max_model_len: int
) -> text_pb2.TextEntry:
    """Returns the submit that a shim would send. Raises TandemError as choices_of and check_num_ids."""
    check_num_ids(len(request.token_ids.ids), max_model_len, truncated=request.HasField("truncation"))
    check_num_ids(len(request.resume.started.prompt_token_ids), max_model_len, truncated=False)
    started = request.resume.started
    is_started = request.resume.HasField("started")
    seed = request.seed if request.HasField("seed") else None
    submit = text_pb2.TextSubmit(
        request_id=request.request_id,
        attempt=attempt_of(request),
        seed=started.seed if is_started else seed,
        choices=choices_of(request, max_n, max_model_len),
        sampling=request.sampling,
        output=request.output if request.HasField("output") else DEFAULT_OUTPUT,
        resolved=started.resolved if started.HasField("resolved") else None,
        cache_salt=request.cache_salt,
        cache_group=request.cache_group,
        traceparent=traceparent,
        priority=request.priority,
        return_sampling=request.return_sampling,
        numerics_id=started.numerics_id,
    )
    if started.prompt_token_ids:
        submit.prompt_token_ids = pack_u32(started.prompt_token_ids)
        return text_pb2.TextEntry(submit=submit)
    kind = request.WhichOneof("input")
    if kind == "token_ids":
        submit.prompt_token_ids = pack_u32(request.token_ids.ids)
    elif kind is not None:
        getattr(submit, kind).CopyFrom(getattr(request, kind))
    if request.HasField("truncation"):
        submit.truncation.CopyFrom(request.truncation)
    return text_pb2.TextEntry(submit=submit)


class TextResponses(ResponseMailbox[text_pb2.GenerateTextResponse]):
    """The responses of one call. A choice's handle is its index."""

    def __init__(self, *, stream: bool) -> None:
        super().__init__(text_pb2.GenerateTextResponse, stream=stream)

    def put_accepted(self, accepted: text_pb2.TextAccepted) -> None:
        started = self.started()
        if started is None:
            return
        started.seed, started.cached_tokens = accepted.seed, accepted.cached_tokens
        started.prompt_token_ids.extend(unpack_u32(accepted.prompt_token_ids))
        started.numerics_id = accepted.numerics_id
        if accepted.HasField("resolved"):
            started.resolved.CopyFrom(accepted.resolved)
        if accepted.HasField("sampling"):
            started.sampling.CopyFrom(accepted.sampling)

    def put_prompt_logprobs(self, scored: text_pb2.TextPromptLogprobs) -> None:
        self.add_prompt_logprobs(scored, len(scored.logprobs.token_ids) // ITEM_BYTES)

    def put_tokens(
        self,
        handle: int,
        start_index: int,
        token_ids: list[int],
        pieces: list[Piece],
        logprobs: list[text_pb2.TokenLogprobs],
    ) -> None:
        delta, num_entries = self.delta(handle), len(token_ids)
        delta.token_ids.extend(token_ids)
        _add_pieces(delta, pieces)
        if logprobs:
            num_entries += sum(1 + len(one.top) for one in logprobs)
            delta.logprobs.extend(logprobs)
        self.changed(num_entries)

    def put_terminal(self, terminal: text_pb2.TextTerminal) -> None:
        delta = self.delta(terminal.handle)
        _add_pieces(delta, unpacked(terminal.pieces, terminal.piece_kinds))
        delta.finish_reason = terminal.reason
        stop = terminal.WhichOneof("stop_reason")
        if stop is not None:
            setattr(delta, stop, getattr(terminal, stop))
        self.end(terminal)


def _add_pieces(delta: text_pb2.TextDelta, pieces: list[Piece]) -> None:
    """Appends pieces. The first one merges with the last one of the delta, if both are of one kind."""
    for kind, text in pieces:
        if delta.pieces and delta.pieces[-1].kind == kind:
            delta.pieces[-1].text += text
        else:
            delta.pieces.add(kind=kind, text=text)
