"""What must not change of an answer, and how two answers differ: text, token ids, logprobs to the last bit, reasoning,
calls with their ids, finish reasons, usage but for the tokens that the prefix cache held."""

from typing import Any

from tests.chaos.attempt import ANSWERED, Attempt
from tests.chaos.cases import Json
from tests.e2e.api import fold
from tests.recovery.workload import differences

PER_RESPONSE = ("id", "created")


def answer_of(attempt: Attempt) -> Json:
    """Returns what must not change of an answer, also of one that the client has only in part. Raises AssertionError if
    the events of a stream contradict each other."""
    if attempt.whole is not None:
        answer = {name: value for name, value in attempt.whole.items() if name not in PER_RESPONSE}
    else:
        answer = {
            "choices": fold(attempt.events),
            "prompt_token_ids": [event["prompt_token_ids"] for event in attempt.events if "prompt_token_ids" in event],
            "models": sorted({(event["model"], str(event.get("system_fingerprint"))) for event in attempt.events}),
            "usage": next((event["usage"] for event in reversed(attempt.events) if event.get("usage")), None),
        }
    if answer["usage"] is not None:
        answer["usage"] = {**answer["usage"], "prompt_tokens_details": None}
    return answer


def begins(part: Any, whole: Any) -> bool:
    """Returns whether `whole` may have begun as `part`: the first part of an answer, whose fields may be missing."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and begins(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        if len(part) > len(whole):
            return False
        *before, last = part or [None]
        return before == whole[: len(before)] and (not part or begins(last, whole[len(before)]))
    if isinstance(part, str) and isinstance(whole, str):
        return whole.startswith(part)
    return part is None or bool(part == whole)


def wrong(attempt: Attempt, expected: Json) -> list[str]:
    """Returns how the answer, complete or given up, differs from the expected one; [] if it does not."""
    try:
        actual = answer_of(attempt)
    except AssertionError as error:
        return [f"contradicts itself: {error}"]
    if attempt.outcome == ANSWERED:
        return [line[:500] for line in differences(actual, expected)][:5]
    indices = sorted({choice["index"] for event in attempt.events for choice in event["choices"]})
    pairs = [(part, expected["choices"][index]) for index, part in zip(indices, actual["choices"], strict=True)]
    return [f"given up at {part!r:.300} of {whole!r:.300}" for part, whole in pairs if not begins(part, whole)]
