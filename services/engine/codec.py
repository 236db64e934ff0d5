"""Between the messages of the gRPC edge and the types of the engine core."""

from dataclasses import dataclass

from engine_core.events import Finished, Logprobs, NewTokens, SchedulerStats
from engine_core.request import Stop
from engine_core.request_check import MAX_STOP_TOKEN_IDS, NewChoice
from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import ModelFacts, SamplingDefaults
from services.rpc.columns import ITEM_BYTES, pack_f32, pack_u32, unpack_u32
from services.rpc.errors import TandemError
from services.rpc.finish_reasons import REASON_BY_NAME
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.mailbox import MERGED_TOKENS, Mailbox, num_fitting


def sampling_params(sampling: pb.SamplingParams, facts: ModelFacts, num_prompt_tokens: int) -> SamplingParams:
    """Fills in what the request left out: the model's defaults, then OpenAI's."""
    defaults: SamplingDefaults = facts.sampling_defaults

    def pick(name: str, default: float) -> float:
        return float(getattr(sampling, name)) if sampling.HasField(name) else default

    left = facts.max_model_len - num_prompt_tokens
    default_max = left if defaults.max_tokens is None else min(left, defaults.max_tokens)
    return SamplingParams(
        max_tokens=sampling.max_tokens if sampling.HasField("max_tokens") else max(1, default_max),
        temperature=pick("temperature", defaults.temperature),
        top_p=pick("top_p", defaults.top_p),
        top_k=max(0, int(pick("top_k", defaults.top_k))),
        min_p=pick("min_p", defaults.min_p),
        presence_penalty=pick("presence_penalty", 0.0),
        frequency_penalty=pick("frequency_penalty", 0.0),
        repetition_penalty=pick("repetition_penalty", defaults.repetition_penalty),
        min_tokens=sampling.min_tokens,
        eos_token_ids=() if sampling.ignore_eos else facts.eos_token_ids,
        stop_token_ids=tuple(sampling.stop_token_ids),
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
    )


def new_choices(submit: engine_pb2.Submit, facts: ModelFacts, handles: list[int], seed: int) -> list[NewChoice]:
    """One NewChoice per choice of the submit, under the core's handles. Raises ValueError for a broken column."""
    prompt = unpack_u32(submit.prompt_token_ids)
    sampling = sampling_params(submit.sampling, facts, len(prompt))
    return [
        NewChoice(
            handle=handle,
            choice=choice.choice,
            prompt_token_ids=prompt,
            resumed_token_ids=unpack_u32(choice.resumed_token_ids),
            sampling=sampling,
            seed=seed,
            cache_salt=submit.cache_salt,
            priority=submit.priority,
            num_cached_tokens=choice.cached_tokens if choice.HasField("cached_tokens") else None,
        )
        for handle, choice in zip(handles, submit.choices, strict=True)
    ]


def engine_facts(facts: ModelFacts, max_num_seqs: int, max_n: int, max_num_queued_reqs: int) -> pb.EngineFacts:
    return pb.EngineFacts(
        served_model_names=facts.served_model_names,
        max_model_len=facts.max_model_len,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        block_size=facts.block_size,
        kv_groups=[pb.KvGroup(kind=kind, num_blocks=facts.num_blocks) for kind in facts.kv_groups],
        limits=pb.RequestLimits(
            max_logprobs=facts.max_logprobs,
            max_n=max_n,
            max_num_seqs=max_num_seqs,
            max_num_queued_reqs=max_num_queued_reqs,
            max_stop_token_ids=MAX_STOP_TOKEN_IDS,
        ),
        numerics_id=facts.numerics_id,
        weights_version=facts.weights_version,
    )


def engine_stats(stats: SchedulerStats) -> engine_pb2.EngineStats:
    return engine_pb2.EngineStats(**{name: getattr(stats, name) for name in SchedulerStats.__dataclass_fields__})


def terminal(handle: int, finished: Finished, facts: ModelFacts) -> engine_pb2.Terminal:
    """`handle` is the caller's."""
    stop = finished.stop
    return engine_pb2.Terminal(
        handle=handle,
        reason=REASON_BY_NAME[stop.reason],
        stop_token_id=stop.stop_token_id,
        prompt_tokens=finished.num_prompt_tokens,
        output_tokens=finished.num_output_tokens,
        cached_tokens=finished.num_cached_tokens,
        error=_error(stop),
        numerics_id=facts.numerics_id,
        weights_version=facts.weights_version,
    )


def _error(stop: Stop) -> pb.Error | None:
    return TandemError("INTERNAL", stop.message).to_proto() if stop.reason == "error" else None


NO_LOGPROBS = Logprobs(0, [], [])


@dataclass(slots=True)
class _PendingRow:
    handle: int
    start_index: int
    token_ids: list[int]
    width: int
    logprob_ids: list[int]
    logprobs: list[float]

    def num_bytes(self) -> int:
        return ITEM_BYTES * (len(self.token_ids) + 2 * len(self.logprobs))


class StepMailbox(Mailbox[engine_pb2.EngineUp]):
    """Upwards to one caller: what steps brought to its choices. Tokens of one choice merge until they are written."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._epoch = epoch
        self._accepted: list[engine_pb2.Accepted] = []
        self._rows: dict[tuple[int, int], _PendingRow] = {}  # by handle and span of tokens
        self._terminals: list[engine_pb2.Terminal] = []
        self._stats = engine_pb2.EngineStats()

    def put_accepted(self, accepted: engine_pb2.Accepted) -> None:
        self._accepted.append(accepted)
        self._wake.set()

    def put_tokens(self, handle: int, tokens: NewTokens) -> None:
        logprobs = tokens.logprobs or NO_LOGPROBS
        key = (handle, tokens.start_index // MERGED_TOKENS)
        row = self._rows.get(key)
        if row is None:
            self._rows[key] = _PendingRow(
                handle,
                tokens.start_index,
                list(tokens.token_ids),
                logprobs.width,
                list(logprobs.token_ids),
                list(logprobs.values),
            )
        else:
            row.token_ids += tokens.token_ids
            row.logprob_ids += logprobs.token_ids
            row.logprobs += logprobs.values
        self._wake.set()

    def put_terminal(self, terminal: engine_pb2.Terminal) -> None:
        self._terminals.append(terminal)
        self._wake.set()

    def put_stats(self, stats: engine_pb2.EngineStats) -> None:
        """Travels with the next message; not worth one of its own."""
        self._stats = stats

    def take(self) -> engine_pb2.EngineUp:
        count = num_fitting(row.num_bytes() for row in self._rows.values())
        rows = list(self._rows.values())[:count]
        self._rows = dict(list(self._rows.items())[count:])
        accepted, self._accepted = self._accepted, []
        terminals: list[engine_pb2.Terminal] = []
        if self._rows:
            self._wake.set()
        else:  # the last of a choice: behind all its tokens
            terminals, self._terminals = self._terminals, []
        batch = engine_pb2.StepBatch(
            epoch=self._epoch,
            step_id=self._stats.num_steps,
            accepted=accepted,
            handles=pack_u32(row.handle for row in rows),
            start_indices=pack_u32(row.start_index for row in rows),
            counts=pack_u32(len(row.token_ids) for row in rows),
            logprob_widths=pack_u32(row.width for row in rows),
            token_ids=pack_u32(token_id for row in rows for token_id in row.token_ids),
            logprob_token_ids=pack_u32(token_id for row in rows for token_id in row.logprob_ids),
            logprobs=pack_f32(value for row in rows for value in row.logprobs),
            terminals=terminals,
            stats=self._stats,
        )
        return engine_pb2.EngineUp(step=batch)
