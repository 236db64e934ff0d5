"""Small tokenizers of the kinds that checkpoints have, as tokenizer.json in a directory."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import demo

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "hello world, hello there",
    "a < s > b / im_end think | t",
] * 5
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENS = [
    AddedToken("<s>", normalized=False, special=True),
    AddedToken("</s>", normalized=False, special=True),
    AddedToken("<unk>", normalized=False, special=True),
    AddedToken("<|im_start|>", normalized=False, special=True),
    AddedToken("<|im_end|>", normalized=False, special=True, rstrip=True),
    AddedToken("<mask>", normalized=False, special=True, lstrip=True),
    AddedToken("<word>", normalized=False, single_word=True),
    AddedToken("<think>", normalized=False),
    AddedToken("<t>", normalized=True),
    AddedToken("<t><t>", normalized=True),
    AddedToken("\n\n", normalized=False),
]


def byte_level() -> Tokenizer:
    """As Qwen's and Llama 3's."""
    config = json.loads((demo.CHECKPOINT / "tokenizer.json").read_text())
    return Tokenizer.from_str(json.dumps({**config, "added_tokens": [], "normalizer": {"type": "NFC"}}))


def byte_level_of_whole_words() -> Tokenizer:
    """As Llama 3's with ignore_merges, and added tokens in its vocabulary."""
    config = json.loads(byte_level().to_str())
    config["model"]["ignore_merges"] = True
    config["model"]["vocab"] |= {token.content: 1024 + index for index, token in enumerate(TOKENS[:5])}
    config["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
    return Tokenizer.from_str(json.dumps(config))


def _llama(merging: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    names = ["<unk>", "<s>", "</s>", *BYTES]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=names, show_progress=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(CORPUS, trainer)
    if merging:  # to an added token
        config = json.loads(tokenizer.to_str())
        vocab = config["model"]["vocab"]
        for left, right in (("<", "/"), ("</", "s"), ("</s", ">"), ("<", "think"), ("<think", ">")):
            for text in (left, right, left + right):
                vocab.setdefault(text, len(vocab))
            config["model"]["merges"].append([left, right])
        tokenizer = Tokenizer.from_str(json.dumps(config))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def llama_first() -> Tokenizer:
    tokenizer = _llama()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def llama_always() -> Tokenizer:
    return _llama()


def llama_merging() -> Tokenizer:
    return _llama(merging=True)


def llama_old() -> Tokenizer:
    """Its normalizer does what Metaspace does in others."""
    tokenizer = _llama()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = None
    return tokenizer


def unigram() -> Tokenizer:
    """As T5's and XLM-R's."""
    tokenizer = Tokenizer(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    make.__name__: make
    for make in (
        *(byte_level, byte_level_of_whole_words, llama_first, llama_always, llama_merging, llama_old),
        *(unigram, word_piece),
    )
}


@cache
def directory(kind: str) -> Path:
    """Returns a directory with the tokenizer.json of a kind and all of TOKENS."""
    tokenizer: Any = KINDS[kind]()
    tokenizer.add_tokens(TOKENS)
    path = Path(mkdtemp())
    tokenizer.save(str(path / "tokenizer.json"))
    return path
