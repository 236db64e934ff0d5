"""The numbers in the page's prose are those of the code."""

import pytest

from engine_core.request_check import MAX_N
from engine_core.token_lists import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS
from services.rpc.output_limits import MAX_ALL_CHOICE_CHARACTERS, MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH
from services.shim.ignored_keywords import MAX_HEADER
from services.shim.reference.page_text import AFTER

PROSE = " ".join(AFTER.split())


@pytest.mark.parametrize(
    "sentence",
    [
        f"`n` is at most {MAX_N}, `stop_token_ids` and `logprob_token_ids` have at most {MAX_STOP_TOKEN_IDS} ids",
        f"at most {MAX_BAD_WORDS:,} entries, a bad word at most {MAX_BAD_WORD_TOKENS} tokens",
        f"have at most {MAX_SCHEMA_BYTES // 2**20} MiB and {MAX_SCHEMA_DEPTH} levels",
        f"at most {MAX_ALL_CHOICE_CHARACTERS:,} characters in all texts",
        f"after {MAX_HEADER:,} characters the rest is counted",
    ],
)
def test_the_prose_names_the_limit(sentence: str) -> None:
    assert MAX_LOGIT_BIAS == MAX_BAD_WORDS
    assert sentence in PROSE
