"""Small checkpoints with all the files of published ones: sharded weights, a tokenizer with its special tokens and
post-processor, the publisher's chat template, several end tokens."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModelForCausalLM

import demo
from tests.worker.models.parity_cases import BASE, LLAMA_3, longrope, spread

TEMPLATES = Path(__file__).parents[1] / "tokenizer" / "templates"
FEW_FILES = "60KB"  # so small that there are several shards


@dataclass(frozen=True)
class Published:
    """`config`: beside BASE. `tokens`: of the template, beside the demo's vocabulary. `bos`: what the tokenizer adds to
    texts; None for a tokenizer that adds nothing. `ends`: those of generation_config.json."""

    model_type: str
    template: str
    tokens: tuple[str, ...]
    bos: str | None
    ends: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> Path:
        """Writes the files to `path`, weights in float32. Returns `path`."""
        tokenizer = Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))
        tokenizer.add_special_tokens(list(self.tokens))
        ends = [tokenizer.token_to_id(token) for token in self.ends]
        sizes = {**BASE, "vocab_size": tokenizer.get_vocab_size(), "eos_token_id": ends[0]}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(self.model_type, **{**sizes, **self.config}))
        spread(model, seed=5)
        model.generation_config.eos_token_id = ends
        model.save_pretrained(path, max_shard_size=FEW_FILES)
        self._save_tokenizer(path, tokenizer)
        return path

    def _save_tokenizer(self, path: Path, tokenizer: Tokenizer) -> None:
        if self.bos is not None:
            bos = (self.bos, tokenizer.token_to_id(self.bos))
            tokenizer.post_processor = TemplateProcessing(single=f"{self.bos} $A", special_tokens=[bos])
        tokenizer.save(str(path / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self.tokens[0],
            "eos_token": self.ends[0],
            "chat_template": (TEMPLATES / self.template).read_text(),
        }
        (path / "tokenizer_config.json").write_text(json.dumps(config))


PUBLISHED = {
    "meta-llama/Llama-3.2-tiny": Published(
        "llama",
        "llama3.2.jinja",
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eom_id|>",
            "<|eot_id|>",
        ),
        "<|begin_of_text|>",
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        {"tie_word_embeddings": True, "head_dim": 32, "rope_parameters": LLAMA_3},
    ),
    "mistralai/Mistral-Nemo-tiny": Published(
        "mistral",
        "mistral-nemo.jinja",
        ("<s>", "</s>", "[INST]", "[/INST]"),
        "<s>",
        ("</s>",),
        {"sliding_window": None, "head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "microsoft/Phi-3.5-tiny": Published(
        "phi3",
        "phi3.5-mini.jinja",
        ("<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        None,
        ("<|end|>", "<|assistant|>"),
        {"hidden_size": 96, "num_attention_heads": 2, "partial_rotary_factor": 0.75, **longrope(300, 18)},
    ),
}
