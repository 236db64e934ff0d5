"""The limit on the logprobs of one answer, --max-logprob-entries: they take memory in every process that they pass."""

from services.rpc.columns import ITEM_BYTES
from services.rpc.errors import invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.apis.request import GenerationRequest

MORE_TOKENS = 16  # that a tokenizer may add to a text: special tokens, a space at the beginning
TEMPLATE_TOKENS = 2**16  # that a chat template may add to its messages and tools


def check_logprob_entries(
    checked: GenerationRequest, submits: list[text_pb2.TextSubmit], facts: pb.EngineFacts, limit: int
) -> None:
    """Refuses a request whose answer may have more logprobs, over all prompts, than max_logprob_entries, `limit`.

    Without a token limit, an answer may be as long as the context. A text has at most one token per byte, a chat
    so many and those of its template.
    """
    factors, entries = [], 0
    num_prompts = len(submits)
    if checked.num_logprobs is not None:
        per_token = 1 + max(_count(checked.num_logprobs, facts), len(checked.logprob_token_ids or ()))
        choices, tokens = num_prompts * checked.n, _answer_tokens(checked, facts.max_model_len)
        given = "max_tokens" if checked.token_limit is not None else "tokens of the context, as max_tokens is not set"
        factors.append(
            f"{choices} choices ({num_prompts} prompts times n = {checked.n}) x {tokens} {given} x {per_token} logprobs"
            " per token"
        )
        entries += choices * tokens * per_token
    if checked.num_prompt_logprobs is not None:
        per_token = 1 + _count(checked.num_prompt_logprobs, facts)
        tokens = sum(_most_tokens(submit, facts.max_model_len) for submit in submits)
        factors.append(f"up to {tokens} prompt tokens x {per_token} logprobs per token")
        entries += tokens * per_token
    if entries <= limit:
        return
    name = checked.logprobs_field if checked.token_limit is not None else "max_tokens"
    scores = "prompt_logprobs, the prompts, " if checked.num_prompt_logprobs is not None else ""
    raise invalid(
        f"{' + '.join(factors)} = {entries}, but max_logprob_entries is {limit}: lower {scores}max_tokens, n or"
        f" {checked.logprobs_field}",
        name if checked.num_logprobs is not None else "prompt_logprobs",
    )


def _answer_tokens(checked: GenerationRequest, max_model_len: int) -> int:
    return max_model_len if checked.token_limit is None else min(checked.token_limit, max_model_len)


def _count(num_logprobs: int, facts: pb.EngineFacts) -> int:
    return facts.vocab_size if num_logprobs == -1 else num_logprobs


def _most_tokens(submit: text_pb2.TextSubmit, max_model_len: int) -> int:
    """Returns how many tokens a submit's prompt has at most."""
    kind = submit.WhichOneof("input")
    if kind == "prompt_token_ids":
        most = len(submit.prompt_token_ids) // ITEM_BYTES
    elif kind == "text":
        most = len(submit.text.text.encode()) + MORE_TOKENS
    else:
        most = submit.chat.ByteSize() + len(submit.output.tools_json) + TEMPLATE_TOKENS
    if submit.truncation.HasField("max_tokens"):
        most = min(most, submit.truncation.max_tokens)
    return min(most, max_model_len)
