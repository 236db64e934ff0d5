"""Which added tokens are control tokens."""

import pytest
from tokenizers import AddedToken

from services.tokenizer.control_tokens import ControlToken, control_tokens


@pytest.mark.parametrize(
    ("text", "special", "is_control"),
    [
        ("<|im_end|>", True, True),
        ("<think>", False, True),
        ("[INST]", False, True),
        ("<｜User｜>", False, True),
        ("covid19", False, False),
        ("covid19", True, True),
        ("\n\n", False, False),
        ("▁▁", False, False),
        ("  ", True, False),
        ("天气", False, False),
    ],
)
def test_words_of_the_vocabulary_are_none(text: str, special: bool, is_control: bool) -> None:
    found = control_tokens([AddedToken(text, special=special)])
    assert found == ((ControlToken(text, special),) if is_control else ())
