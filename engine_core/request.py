"""One choice of one request, as the scheduler sees it: known tokens and blocks.

There is no prefill and no decode: the computed tokens catch up with the known ones. The known tokens are the prompt and
all output so far, including output that a resumed request brings along. While the request runs, engine_core/batch.py
counts how many are computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from engine_core.block import Block, UnpublishedBlocks
from engine_core.step_plan import PromptLogprobs, SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]
SUSPECT_AT = 2  # strikes from which on a request is a suspect and runs alone


@dataclass(slots=True, eq=False)
class Request:
    """The state of one choice. `num_tokens` is the number of its known tokens, prompt and output."""

    handle: int
    sampling: SamplingParams
    seed: int
    choice: int
    token_ids: list[int]  # prompt, then output
    num_prompt_tokens: int
    root_hash: bytes  # start of the chain of block hashes, 32 bytes
    last_step_id: int = 0  # newest step when it was last preempted; 0: not preempted with this worker
    priority: int = 0  # lower numbers are scheduled first; used by the priority policy only
    arrival: int = 0  # on any one clock: the earliest is scheduled first, and the lowest handle where it is equal
    num_cached_tokens: int | None = None  # prompt tokens found in the prefix cache; None before the first admission
    slot: int | None = None  # row in the worker's batch; None while it waits
    blocks: list[list[Block]] = field(default_factory=list)  # per KV group: by index, those given back, too
    given_back: list[list[int]] = field(default_factory=list)  # per KV group: take_numbers of its first blocks, gone
    block_hashes: list[bytes] = field(default_factory=list)  # of its first full blocks, as far as computed
    unpublished: UnpublishedBlocks | None = None  # blocks that the prefix cache may still publish
    num_preemptions: int = 0
    strikes: int = 0  # worker deaths while it ran, since its last trial ended
    trial: int = 0  # length of its last trial, in new output tokens; 0: it has had none
    trial_end: int = 0  # number of output tokens that ends the trial
    traceparent: str = ""  # W3C trace context; passed to the worker unread
    grammar: str = ""  # what the whole output follows, in llguidance's form of Lark; empty: anything
    waits_for: str = ""  # what is prepared for it before it may run, for example "grammar"; empty: it is ready
    preparation_deaths: int = 0  # worker deaths while it was prepared, since that last succeeded
    completed_at: int | None = None  # output tokens that complete the grammar: nothing may follow
    next_prompt_logprob: int = 1  # index of the first prompt token without logprobs so far, if they are requested

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def needs_prompt_logprobs(self) -> bool:
        return self.sampling.prompt_logprobs is not None and self.next_prompt_logprob < self.num_prompt_tokens

    @property
    def num_reusable_tokens(self) -> int:
        """How many of its first tokens need not be computed again if the prefix cache has them: the last known token
        gives the next one's logits, and the one before `next_prompt_logprob` gives its logprobs."""
        return (self.next_prompt_logprob if self.needs_prompt_logprobs else self.num_tokens) - 1

    @property
    def is_suspect(self) -> bool:
        return self.strikes >= SUSPECT_AT

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a request ended. `stop_token_id` is set when one of stop_token_ids ended it, `message` after an error.

    `param` is the request's own parameter that caused the error; empty: none did, the error is the server's.
    """

    reason: FinishReason
    stop_token_id: int | None = None
    message: str = ""
    param: str = ""


def stop_at(request: Request, num_output_tokens: int) -> Stop | None:
    """Returns why the request ends after its first `num_output_tokens` output tokens, or None if it goes on."""
    if num_output_tokens == 0:
        return None
    sampling = request.sampling
    token_id = request.token_ids[request.num_prompt_tokens + num_output_tokens - 1]
    if num_output_tokens > sampling.min_tokens:
        if token_id in sampling.eos_token_ids and not sampling.ignore_eos:
            return Stop("stop")
        if token_id in sampling.stop_token_ids:
            return Stop("stop", token_id)
    if num_output_tokens == request.completed_at:
        return completion(request)
    return Stop("length") if num_output_tokens >= sampling.max_tokens else None


def take_prompt_logprobs(requests: Mapping[int, Request], scored: PromptLogprobs) -> bool:
    """Counts logprobs of a prompt as known. Returns False if they are not the next ones of their request: stale."""
    request = requests.get(scored.handle)
    if request is None or scored.start_index != request.next_prompt_logprob:
        return False
    request.next_prompt_logprob += scored.num_tokens
    return True


def completion(request: Request) -> Stop:
    """Returns why a request ends whose grammar is complete after `completed_at` output tokens."""
    count, min_tokens = request.completed_at or 0, request.sampling.min_tokens
    if count >= min_tokens:
        return Stop("stop")
    message = f"the grammar is complete after {count} tokens, but min_tokens is {min_tokens}"
    return Stop("error", message=message, param="min_tokens")
