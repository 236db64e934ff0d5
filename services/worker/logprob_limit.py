"""--max-logprobs: the most top logprobs per token, for this model and this size of steps."""

from engine_core.step_plan import MAX_SCORED_TOKENS, SCORED_WIDTH
from engine_core.token_lists import MAX_LOGPROB_TOKEN_IDS
from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from services.worker.errors import ModelError
from services.zeromq.frame_sizes import MAX_RESULT_BYTES

ENTRY_BYTES = 8  # id and value in a StepResult
ROW_BYTES = 64  # of a row without logprobs, errors included


def logprob_limit(options: WorkerOptions, vocab_size: int) -> int:
    """Returns the most top logprobs per token: --max-logprobs, at most the vocabulary's size, which -1 means."""
    return vocab_size if options.max_logprobs < 0 else min(options.max_logprobs, vocab_size)


def logprob_width(options: WorkerOptions, vocab_size: int) -> int:
    """Returns the most logprobs per token, requested ids and the sampled token included."""
    return 1 + max(logprob_limit(options, vocab_size), MAX_LOGPROB_TOKEN_IDS)


def check_result_size(options: WorkerOptions, vocab_size: int, limits: BatchLimits) -> None:
    """Raises ModelError if a step's result with all logprobs could exceed the largest message to the engine."""
    rows = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    wanted = logprob_limit(options, vocab_size)
    # Each request may have a sampled token and a scored one; the scored ones of a step have so many logprobs more.
    left = MAX_RESULT_BYTES - MAX_SCORED_TOKENS * SCORED_WIDTH * ENTRY_BYTES
    most = (left // (2 * rows) - ROW_BYTES) // ENTRY_BYTES - 1
    if wanted > most:
        raise ModelError(
            f"--max-logprobs: {wanted} logprobs of {rows} requests (--max-num-seqs) do not fit into a step's result of"
            f" {MAX_RESULT_BYTES} bytes, which has room for {most} each: lower one of them"
        )
