"""What the scheduler is told at its start. Recordings contain it, so a new field goes last and has a default."""

from dataclasses import dataclass

MOST_KNOWN_TOKENS = 2**20  # once a step has admitted so many, cached ones included, it admits no further request


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of one step, and the scheduling policy.

    Raises ValueError if max_num_batched_tokens is below max_num_seqs.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0  # most tokens of one request in a step while others run or wait; 0: no limit
    by_priority: bool = False  # lower priority numbers first; False: first come, first served

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs ({self.max_num_seqs}):"
                " each running request needs one token of a step"
            )
