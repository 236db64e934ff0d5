"""The demo model's tokenizer: byte-level BPE with a token for every digit, trained on the dialogues."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo.dialogues import LATE, dialogues
from demo.facts import CITIES

END_OF_TEXT, START, END = SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Single tokens that stay visible in the answer's text, as in Qwen3.
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TEMPLATE = Path(__file__).parent / "chat_template.jinja"


def _texts(seed: int) -> Iterator[str]:
    for dialogue in islice(dialogues(seed, LATE), 20_000):
        for message in dialogue.messages:
            yield f"{message['role']}\n{message['content']}"
        yield dialogue.answer
        for tool in dialogue.tools:
            yield json.dumps(tool)
    # Both are rare in the dialogues but should be few tokens: every prompt with tools has the template's text.
    yield from [TEMPLATE.read_text(encoding="utf-8"), " ".join(CITIES)] * 200


def build_tokenizer(vocab_size: int, seed: int) -> Tokenizer:
    """Returns a tokenizer trained on the dialogues of `seed`. Special tokens and MARKS have the lowest ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(token, special=True, normalized=False) for token in SPECIALS]
    added += [AddedToken(token, special=False, normalized=False) for token in MARKS]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=added,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path, max_length: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json into `out`. `max_length` is in tokens."""
    written = json.loads(tokenizer.to_str())
    for token in written["added_tokens"]:
        token["special"] = token["content"] in SPECIALS  # the trainer marks all of them as special
    (out / "tokenizer.json").write_text(json.dumps(written, indent=2, ensure_ascii=False), encoding="utf-8")
    described = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in SPECIALS,
        }
        for token in (*SPECIALS, *MARKS)
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": described,
        "chat_template": TEMPLATE.read_text(encoding="utf-8"),
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (out / "tokenizer_config.json").write_text(text, encoding="utf-8")
