"""Stand-ins for tests without a model: a worker with a hash chain as KV, so that a wrong block is seen.

Position p of a request holds, in each KV group, H(what p - 1 holds, token p); the next token is a function of the last
hash. All positions that attention would read are compared with what they must hold before each row is computed. So if
scheduler or block pool ever hand out a wrong block, or give one back too early, FakeWorker.execute fails.
"""

import hashlib
from itertools import accumulate, pairwise

import numpy as np

from engine_core.events import Finished
from engine_core.kv_groups import FULL, SlidingWindow
from engine_core.request import Request
from engine_core.request_check import NewChoice, make_request
from engine_core.scheduler import Scheduler
from engine_core.step_plan import ITEM_BYTES, PromptLogprobs, SamplingParams, StepPlan, StepResult, pack_i32, unpack_i32
from engine_core.worker_messages import ModelFacts, Prepare, Prepared, SamplingDefaults

VOCAB_SIZE = 50
ROOT_KEY = b"the root key of fake engines ---"


class FakeService:
    """A callee that could make a token."""

    def is_ready(self) -> bool:
        return True

    def is_served(self) -> bool:
        return True


SERVICE = FakeService()


def make_facts(num_blocks: int = 64, block_size: int = 4, max_model_len: int = 64, **changes: object) -> ModelFacts:
    values: dict[str, object] = {
        "served_model_names": ("fake",),
        "max_model_len": max_model_len,
        "vocab_size": VOCAB_SIZE,
        "eos_token_ids": (0,),
        "block_size": block_size,
        "num_blocks": num_blocks,
        "kv_groups": (FULL,),
        "max_logprobs": 20,
        "sampling_defaults": SamplingDefaults(temperature=0.0),
        "tokenizer_digest": "",
        "numerics_id": "fake-numerics",
        "weights_version": "fake-weights",
    }
    return ModelFacts(**{**values, **changes})  # type: ignore[arg-type]


def make_core_request(
    handle: int,
    prompt: list[int],
    max_tokens: int = 8,
    facts: ModelFacts | None = None,
    resumed: list[int] | None = None,
    cache_salt: str = "",
    grammar: str = "",
    cache_group: str = "",
    scored_from: int = 0,
    **sampling: object,
) -> Request:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, **sampling)  # type: ignore[arg-type]
    new = NewChoice(handle, 0, prompt, resumed or [], params, 0, cache_salt, None, 0, grammar, cache_group, scored_from)
    return make_request(new, facts or make_facts(), ROOT_KEY)


def _chain(previous: bytes, token_id: int) -> bytes:
    return hashlib.sha256(previous + token_id.to_bytes(4, "little")).digest()


def _next_token(last: bytes, vocab_size: int) -> int:
    return int.from_bytes(last[:4], "little") % vocab_size


def fake_logprobs(token_id: int, count: int) -> tuple[list[int], list[float]]:
    """Returns ids and logprobs of the sampled token and `count` others; the values are exact in float32."""
    ids = [token_id, *range(count)]
    return ids, [-(token_id + rank) / 8 for rank in range(len(ids))]


def fake_prompt_logprobs(chain: bytes, token_id: int, width: int) -> tuple[list[int], list[float]]:
    """Returns ids and logprobs, exact in float32, of a prompt token after the tokens with this chain."""
    return [token_id, *range(width - 1)], [-(chain[rank] + rank) / 8 for rank in range(width)]


def prompt_oracle(prompt: list[int], width: int) -> list[tuple[list[int], list[float]]]:
    """Returns what FakeWorker must find for each prompt token but the first."""
    last, found = b"", []
    for token_id, following in pairwise(prompt):
        last = _chain(last, token_id)
        found.append(fake_prompt_logprobs(last, following, width))
    return found


def oracle(prompt: list[int], count: int, vocab_size: int = VOCAB_SIZE) -> list[int]:
    """Returns the `count` tokens that FakeWorker must sample after `prompt`, however they are scheduled."""
    last = b""
    for token_id in prompt:
        last = _chain(last, token_id)
    output = []
    for _ in range(count):
        output.append(_next_token(last, vocab_size))
        last = _chain(last, output[-1])
    return output


class FakeWorker:
    """Executes plans as a worker does, with hashes as KV. Builds its state from the plans alone.

    Its grammars are numbers: "7" is complete after 7 output tokens, whichever these are. Other texts are refused.
    """

    def __init__(self, facts: ModelFacts) -> None:
        self._block_size = facts.block_size
        self._vocab_size = facts.vocab_size
        self._groups = facts.kv_groups
        # (block, offset) -> KV group, chain. The groups share the blocks.
        self._kv: dict[tuple[int, int], tuple[int, bytes]] = {}
        self._tokens: dict[int, list[int]] = {}  # slot -> known tokens
        self._tables: dict[int, list[list[int | None]]] = {}  # slot -> KV group -> blocks; None: none was sent
        self._handles: dict[int, int] = {}
        self._num_prompt: dict[int, int] = {}
        self._num_logprobs: dict[int, int | None] = {}
        self._scored: dict[int, tuple[int, int]] = {}  # slot -> first prompt token with logprobs, their number each
        self.grammars: dict[int, int] = {}  # handle -> output tokens that complete it, of what is prepared
        self._last_step_id: int | None = None
        self.step_tokens: list[int] = []  # tokens computed in each step

    def state(self) -> dict[int, tuple[int, int, list[int], list[list[int | None]]]]:
        """Returns (handle, prompt length, known tokens, block tables) by slot."""
        return {
            slot: (self._handles[slot], self._num_prompt[slot], list(tokens), list(self._tables[slot]))
            for slot, tokens in self._tokens.items()
        }

    def prepare(self, message: Prepare) -> Prepared:
        handle, num_output_tokens = message.handle, len(message.output_token_ids) // ITEM_BYTES
        assert handle not in self.grammars, "it is prepared already"
        if not message.grammar.isdigit():
            return Prepared(message.epoch, handle, f"not a number: {message.grammar}")
        self.grammars[handle] = int(message.grammar)
        assert num_output_tokens <= self.grammars[handle]
        return Prepared(message.epoch, handle, is_complete=num_output_tokens == self.grammars[handle])

    def execute(self, plan: StepPlan) -> StepResult:
        assert plan.base_step_id == self._last_step_id, "a gap between plans"
        self._last_step_id = plan.step_id
        for slot in plan.released_slots:
            for table in (
                self._tokens,
                self._tables,
                self._handles,
                self._num_prompt,
                self._num_logprobs,
                self._scored,
            ):
                del table[slot]
        for handle in plan.dropped_grammars:
            del self.grammars[handle]
        for new in plan.new_requests:
            assert new.slot not in self._tokens, "the slot is taken"
            assert new.has_grammar == (new.handle in self.grammars)
            prompt = unpack_i32(new.prompt_token_ids).tolist()
            self._tokens[new.slot] = prompt + unpack_i32(new.output_token_ids).tolist()
            firsts = new.first_blocks or [0] * len(self._groups)
            self._tables[new.slot] = [
                [None] * first + unpack_i32(ids).tolist() for first, ids in zip(firsts, new.block_ids, strict=True)
            ]
            self._handles[new.slot] = new.handle
            self._num_prompt[new.slot] = len(prompt)
            width = new.sampling.logprob_width
            self._num_logprobs[new.slot] = width - 1 if width else None
            self._scored[new.slot] = (new.prompt_logprobs_from, new.sampling.prompt_logprob_width)
        return self._run_rows(plan)

    def _run_rows(self, plan: StepPlan) -> StepResult:
        pairs = zip(plan.block_offsets, plan.block_ids, strict=True)
        fresh = [(unpack_i32(offsets).tolist(), unpack_i32(ids).tolist()) for offsets, ids in pairs]
        slots, num_new, computed = (
            unpack_i32(column).tolist() for column in (plan.slots, plan.num_new_tokens, plan.num_computed_tokens)
        )
        self.step_tokens.append(sum(num_new))
        for row, slot in enumerate(slots):
            for table, (offsets, ids) in zip(self._tables[slot], fresh, strict=True):
                table += ids[offsets[row] : offsets[row + 1]]
        last: dict[int, bytes] = {}
        # A row may read a shared prefix that another row of this step computes, whatever their order.
        for row in sorted(range(len(slots)), key=lambda row: computed[row]):
            last[row] = self._compute(slots[row], computed[row], num_new[row])
        rows: list[tuple[int, int, int]] = []
        logprobs: list[tuple[list[int], list[float]]] = []
        for row, slot in enumerate(slots):
            if unpack_i32(plan.sampled)[row]:
                assert computed[row] + num_new[row] == len(self._tokens[slot])
                start = int(unpack_i32(plan.output_indices)[row])
                assert start == len(self._tokens[slot]) - self._num_prompt[slot]
                token_id = _next_token(last[row], self._vocab_size)
                rows.append((self._handles[slot], start, token_id))
                self._tokens[slot].append(token_id)
                count = self._num_logprobs[slot]
                logprobs.append(([], []) if count is None else fake_logprobs(token_id, count))
        scored = [self._score(slots[row], computed[row], computed[row] + num_new[row]) for row in range(len(slots))]
        completed = [handle for handle, start, _ in rows if self.grammars.get(handle) == start + 1]
        result = make_result(plan, rows, logprobs, completed)
        result.prompt_logprobs = [one for one in scored if one is not None]
        return result

    def _score(self, slot: int, begin: int, end: int) -> PromptLogprobs | None:
        """Returns the logprobs of the prompt tokens behind those from `begin` to `end`: of token p, those of the chain
        up to p - 1, as the KV has it."""
        first, width = self._scored[slot]
        places = range(max(begin + 1, first), min(end, self._num_prompt[slot] - 1) + 1)
        if not width or not places:
            return None
        chains = [self._kv[self._place(slot, 0, place - 1)][1] for place in places]
        found = [
            fake_prompt_logprobs(chain, self._tokens[slot][p], width) for chain, p in zip(chains, places, strict=True)
        ]
        return PromptLogprobs(
            self._handles[slot],
            places[0],
            width,
            pack_i32([token_id for ids, _ in found for token_id in ids]),
            np.array([value for _, values in found for value in values], dtype="<f4").tobytes(),
            pack_i32([1 + ids[0] for ids, _ in found]),
        )

    def _compute(self, slot: int, computed: int, count: int) -> bytes:
        tokens = self._tokens[slot]
        chains = list(accumulate(tokens[: computed + count], _chain, initial=b""))[1:]
        for number, group in enumerate(self._groups):
            first = max(0, computed - group.size + 1) if isinstance(group, SlidingWindow) else 0
            read = [self._kv[self._place(slot, number, position)] for position in range(first, computed)]
            assert read == [(number, chain) for chain in chains[first:computed]], (
                f"group {number} of slot {slot} has the KV of other tokens"
            )
            for position in range(computed, computed + count):
                self._kv[self._place(slot, number, position)] = number, chains[position]
        return chains[-1]

    def _place(self, slot: int, group: int, position: int) -> tuple[int, int]:
        block = self._tables[slot][group][position // self._block_size]
        assert block is not None, f"group {group} of slot {slot} reads a block that it does not have"
        return block, position % self._block_size


def make_result(
    plan: StepPlan,
    rows: list[tuple[int, int, int]],
    logprobs: list[tuple[list[int], list[float]]] | None = None,
    completed: list[int] | None = None,
) -> StepResult:
    """Returns the result of `plan`. `rows` are (handle, start_index, token id); `logprobs` are the (token ids, values)
    of each row; `completed` are the handles whose grammar is complete."""
    found = logprobs or [([], [])] * len(rows)
    return StepResult(
        epoch=plan.epoch,
        step_id=plan.step_id,
        handles=pack_i32([handle for handle, _, _ in rows]),
        start_indices=pack_i32([start for _, start, _ in rows]),
        counts=pack_i32([1] * len(rows)),
        token_ids=pack_i32([token_id for _, _, token_id in rows]),
        logprob_widths=pack_i32([len(ids) for ids, _ in found]),
        logprob_token_ids=pack_i32([token_id for ids, _ in found for token_id in ids]),
        logprobs=np.array([value for _, values in found for value in values], dtype="<f4").tobytes(),
        completed=completed or [],
    )


def prepare_message(request: Request, epoch: int = 1) -> Prepare:
    return Prepare(epoch, request.handle, request.grammar, pack_i32(request.output_token_ids))


def prepare_all(scheduler: Scheduler, worker: FakeWorker) -> list[Finished]:
    """Prepares what may be prepared now. Returns the Finished events of the requests that this ends."""
    answers = [worker.prepare(prepare_message(request)) for request in scheduler.prepare()]
    ended = [scheduler.prepared(one.handle, one.error, is_complete=one.is_complete) for one in answers]
    return [one for one in ended if one is not None]
