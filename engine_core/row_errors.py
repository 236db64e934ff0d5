"""Errors of single rows of a step that a request's own parameters cause: the client's errors, not the server's.

A worker names the cause; the engine, which has the request, finds the parameter at fault.
"""

from engine_core.step_plan import SamplingParams

# Causes in StepResult.error_causes. "", or one that this engine does not know: not the request's parameters.
NO_TOKEN_LEFT = "no_token_left"  # the masks of the parameters exclude every token
PENALTY_OVERFLOW = "penalty_overflow"  # a penalized logit is beyond float32
GRAMMAR = "grammar"  # the grammar is at a limit, or allows no token


def param_at_fault(cause: str, sampling: SamplingParams, *, has_grammar: bool = False) -> str:
    """Returns the request's parameter that is at fault for an error of this cause; "" if none is."""
    if cause == PENALTY_OVERFLOW:
        return "repetition_penalty"
    if cause == GRAMMAR:
        return "grammar"
    if cause != NO_TOKEN_LEFT:
        return ""
    if sampling.allowed_token_ids:
        return "allowed_token_ids"
    if sampling.bad_words_token_ids:
        return "bad_words"
    return "min_tokens" if sampling.min_tokens or not has_grammar else "grammar"
