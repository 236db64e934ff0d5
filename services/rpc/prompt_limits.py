"""The limits on a prompt of token ids. They are checked before the ids are converted: a message may have millions."""

from services.rpc.errors import invalid, too_long

MAX_TRUNCATED_IDS = 2**20


def check_num_ids(count: int, max_model_len: int, *, truncated: bool) -> None:
    """Refuses a prompt of `max_model_len` or more token ids; if it will be truncated, of more than MAX_TRUNCATED_IDS.

    A model with a longer context may truncate as many ids as it has. Raises TandemError (INVALID_ARGUMENT).
    """
    most_truncated = max(MAX_TRUNCATED_IDS, max_model_len)
    if truncated and count > most_truncated:
        raise invalid(f"prompt: {count} token ids, but at most {most_truncated} can be truncated", "prompt")
    if not truncated and count >= max_model_len:
        raise too_long(count, max_model_len)
