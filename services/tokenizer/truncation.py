"""Shortens a prompt that is too long, if the request asks for it (`truncate_prompt_tokens`).

A shortened prompt is short enough: shortening it again, as a resume does, changes nothing.
"""

from dataclasses import dataclass

from services.rpc.generated import text_pb2

NEVER_REFUSED = 2**63


@dataclass(frozen=True)
class PromptLimits:
    """`longest`: the most tokens that are kept of a prompt, its last ones, or with `drop_end` its first ones. None: all
    are kept, and a prompt of `refused_from` tokens or more is refused."""

    longest: int | None = None
    drop_end: bool = False
    refused_from: int = NEVER_REFUSED


class TooManyTokensError(Exception):
    """The prompt has `refused_from` tokens or more: `num_tokens`."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"{num_tokens} tokens")
        self.num_tokens = num_tokens


def longest_prompt(submit: text_pb2.TextSubmit, max_model_len: int) -> int | None:
    """Returns the most prompt tokens that the submit's truncation keeps; None: it asks for no truncation.

    Without a number of its own, that is what max_tokens, or else one token, leaves of the context length. (vLLM leaves
    one token in any case, and cuts max_tokens.)
    """
    if not submit.HasField("truncation"):
        return None
    if submit.truncation.HasField("max_tokens"):
        return submit.truncation.max_tokens
    return max(1, max_model_len - max(1, submit.sampling.max_tokens))


def truncated(token_ids: list[int], longest: int | None, *, drop_end: bool) -> list[int]:
    """Returns at most `longest` of the tokens: the last ones, or with `drop_end` the first ones; None: all."""
    if longest is None or len(token_ids) <= longest:
        return token_ids
    return token_ids[:longest] if drop_end else token_ids[len(token_ids) - longest :]
