"""Validates an engine's plan before the worker uses it: its numbers become addresses in kernels.

Checks one plan by itself. InputBatch checks it against the state that earlier plans left.
"""

from dataclasses import dataclass

import numpy as np

from engine_core.step_plan import (
    ITEM_BYTES,
    BadMessage,
    NewRequest,
    SamplingParams,
    StepPlan,
    ThinkingBudget,
    checked_column,
)
from engine_core.token_lists import (
    MAX_BAD_WORD_SEQUENCES,
    MAX_BAD_WORD_TOKENS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_TOKEN_IDS,
    MAX_THINKING_MARKER_TOKENS,
    MAX_THINKING_TOKENS,
)
from engine_core.worker_messages import MAX_IDS

MAX_SEED = 2**64 - 1
MAX_CHOICE = 2**32 - 1


@dataclass(frozen=True)
class PlanCheck:
    """Checks a plan against the limits of this worker and its model."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    num_groups: int  # KV groups
    vocab_size: int
    max_logprobs: int

    def __call__(self, plan: StepPlan) -> None:
        """Raises BadMessage for a plan that is malformed or has a value beyond a limit."""
        slots = checked_column("slots", plan.slots, self.max_num_seqs - 1)
        rows = len(slots)
        _require(0 < rows <= self.max_num_seqs, f"{rows} rows, but the limit is 1 to {self.max_num_seqs}")
        _require(len(set(slots.tolist())) == rows, "a slot has two rows")
        for name in ("num_new_tokens", "num_computed_tokens", "output_indices", "sampled"):
            _require(len(getattr(plan, name)) == len(plan.slots), f"{name}: its length is not that of slots")
        num_new = checked_column("num_new_tokens", plan.num_new_tokens, self.max_num_batched_tokens)
        computed = checked_column("num_computed_tokens", plan.num_computed_tokens, self.max_model_len)
        checked_column("output_indices", plan.output_indices, self.max_model_len)
        checked_column("sampled", plan.sampled, 1)
        total = int(num_new.sum(dtype=np.int64))
        _require(bool(num_new.all()), "a row computes no token")
        several = num_new > 1
        _require(not (several[:-1] > several[1:]).any(), "a row of several tokens before one of a single token")
        _require(
            total <= self.max_num_batched_tokens, f"{total} tokens, but the limit is {self.max_num_batched_tokens}"
        )
        longest = int((num_new + computed).max())
        _require(longest <= self.max_model_len, f"a request of {longest} tokens, but the limit is {self.max_model_len}")
        self._check_blocks(plan, rows)
        for slot in plan.released_slots:
            _require(0 <= slot < self.max_num_seqs, f"slot {slot}, but there are {self.max_num_seqs} slots")
        _require(len(plan.new_requests) <= self.max_num_seqs, "more new requests than slots")
        for request in plan.new_requests:
            self._check_request(request)

    def _check_blocks(self, plan: StepPlan, rows: int) -> None:
        groups = self.num_groups
        _require(len(plan.block_offsets) == len(plan.block_ids) == groups, f"KV groups: not {groups}")
        _require(len(set(plan.block_offsets)) == 1, "block_offsets: those of the KV groups differ")
        ids = [checked_column("block_ids", column, self.num_blocks - 1) for column in plan.block_ids]
        _require(len({len(column) for column in ids}) == 1, "block_ids: the KV groups have not as many")
        offsets = checked_column("block_offsets", plan.block_offsets[0], len(ids[0])).astype(np.int64)
        _require(len(offsets) == rows + 1, "block_offsets: its length is not rows + 1")
        partition = offsets[0] == 0 and offsets[-1] == len(ids[0]) and bool((np.diff(offsets) >= 0).all())
        _require(partition, "block_offsets do not partition block_ids")

    def _check_request(self, request: NewRequest) -> None:
        _require(0 <= request.slot < self.max_num_seqs, f"slot {request.slot}, but there are {self.max_num_seqs} slots")
        prompt = checked_column("prompt_token_ids", request.prompt_token_ids, self.vocab_size - 1)
        output = checked_column("output_token_ids", request.output_token_ids, self.vocab_size - 1)
        length = len(prompt) + len(output)
        _require(len(prompt) > 0 and length <= self.max_model_len, f"a new request of {length} tokens")
        firsts, groups = request.first_blocks or [0] * self.num_groups, self.num_groups
        _require(len(request.block_ids) == len(firsts) == groups, f"KV groups: not {groups}")
        counts = [len(checked_column("block_ids", ids, self.num_blocks - 1)) for ids in request.block_ids]
        ends = {first + count for first, count in zip(firsts, counts, strict=True)}
        most = -(-self.max_model_len // self.block_size)
        _require(len(ends) == 1, "a new request with other numbers of blocks in its KV groups")
        _require(min(firsts) >= 0 and max(ends) <= most, f"a new request of {max(ends)} blocks")
        _require(0 <= request.handle < 2**31, f"handle {request.handle} is out of range")
        _require(0 <= request.seed <= MAX_SEED and 0 <= request.choice <= MAX_CHOICE, "a seed or choice out of range")
        _require(1 <= request.prompt_logprobs_from <= self.max_model_len, "prompt_logprobs_from out of range")
        self._check_sampling(request.sampling)

    def _check_sampling(self, sampling: SamplingParams) -> None:
        """Checks only parameters that are used as an index or a count. The engine checks the other ranges."""
        _require(-1 <= sampling.top_k < 2**31, f"top_k {sampling.top_k} is out of range")
        _require(
            0 <= (sampling.logprobs or 0) <= self.max_logprobs,
            f"{sampling.logprobs} logprobs, but the limit is {self.max_logprobs}",
        )
        _require(
            0 <= (sampling.prompt_logprobs or 0) <= self.max_logprobs,
            f"{sampling.prompt_logprobs} prompt_logprobs, but the limit is {self.max_logprobs}",
        )
        _require(0 <= sampling.min_tokens <= self.max_model_len, f"min_tokens {sampling.min_tokens} is out of range")
        ids = (*sampling.eos_token_ids, *sampling.stop_token_ids)
        _require(all(0 <= token_id < self.vocab_size for token_id in ids), "a stop token outside the vocabulary")
        _require(len(ids) <= MAX_IDS + MAX_STOP_TOKEN_IDS, f"{len(ids)} end and stop tokens")
        self._check_lists(sampling)

    def _check_lists(self, sampling: SamplingParams) -> None:
        for name, limit in (
            ("logit_bias_token_ids", MAX_LOGIT_BIAS),
            ("allowed_token_ids", self.vocab_size),
            ("logprob_token_ids", MAX_LOGPROB_TOKEN_IDS),
        ):
            ids = checked_column(name, getattr(sampling, name), self.vocab_size - 1)
            _require(len(ids) <= limit, f"{name}: {len(ids)} ids, but the limit is {limit}")
        bias = (sampling.logit_biases, sampling.logit_bias_token_ids)
        _require(len(bias[0]) == len(bias[1]), "logit_biases: not as many as ids")
        sequences = sampling.bad_words_token_ids
        count, most = len(sequences), MAX_BAD_WORD_SEQUENCES
        _require(count <= most, f"{count} sequences of bad words, but the limit is {most}")
        for sequence in sequences:
            length = len(sequence) // ITEM_BYTES
            _require(1 <= length <= MAX_BAD_WORD_TOKENS, f"a bad word of {length} tokens")
            checked_column("bad_words_token_ids", sequence, self.vocab_size - 1)
        if sampling.thinking_budget is not None:
            self._check_thinking_budget(sampling.thinking_budget)

    def _check_thinking_budget(self, budget: ThinkingBudget) -> None:
        _require(0 <= budget.max_tokens <= MAX_THINKING_TOKENS, f"{budget.max_tokens} thinking tokens")
        for name, least in (("start_token_ids", 0), ("end_token_ids", 1)):
            ids = checked_column(name, getattr(budget, name), self.vocab_size - 1)
            _require(least <= len(ids) <= MAX_THINKING_MARKER_TOKENS, f"{name}: {len(ids)} ids")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise BadMessage(message)
