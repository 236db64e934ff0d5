"""Reads a checkpoint directory in Hugging Face format: configuration, generation defaults, weight files.

Reads JSON and safetensors only: it unpickles nothing and runs no code from a checkpoint.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_core.worker_messages import SamplingDefaults
from services.worker.errors import ModelError
from services.worker.generation_config import FILE, GenerationConfig


def read_json(path: Path) -> dict[str, Any]:
    """Returns the file's JSON object. Raises ModelError if it cannot be read or is not a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return content


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's parsed JSON. `config`: config.json with --hf-overrides applied.

    `generation`: generation_config.json, of the directory that --generation-config chooses.
    """

    path: Path
    config: dict[str, Any]
    generation: GenerationConfig

    def eos_token_ids(self, vocab_size: int) -> tuple[int, ...]:
        """Returns the ids in eos_token_id of generation_config.json, or, if it names none, of config.json, or of its
        text_config.

        Chat models list end-of-turn tokens in the former. Empty if none names any. Raises ModelError for an id
        that is not an integer of the vocabulary.
        """
        text = self.config.get("text_config")
        holders = (self.generation.merged, self.config, text if isinstance(text, dict) else {})
        found: Any = next((each["eos_token_id"] for each in holders if each.get("eos_token_id") is not None), [])
        ids = found if isinstance(found, list) else [found]
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
                raise ModelError(f"eos_token_id {token_id!r} is not a token of the vocabulary of {vocab_size}")
        return tuple(ids)

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """GenerationConfig.sampling_defaults. Raises ModelError for a value that is not a number."""
        return self.generation.sampling_defaults

    def weight_files(self) -> list[Path]:
        """Returns the safetensors files: those in the index, else model.safetensors, else all in the directory.

        Raises ModelError if there are none, if the index is malformed, or if it names a file that is missing or outside
        the directory.
        """
        index = self.path / "model.safetensors.index.json"
        if index.exists():
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
                raise ModelError(f"{index} has no weight_map of file names")
            if outside := [name for name in weight_map.values() if name in ("", "..") or Path(name).name != name]:
                raise ModelError(f"{index} names a file outside its directory: {outside[0]!r}")
            files = [self.path / name for name in sorted(set(weight_map.values()))]
        else:
            single = self.path / "model.safetensors"
            files = [single] if single.exists() else sorted(self.path.glob("*.safetensors"))
        if missing := [file.name for file in files if not file.exists()]:
            raise ModelError(
                f"{self.path} lacks weight files that {index.name} names: {', '.join(missing)}: fetch them"
            )
        if not files:
            raise ModelError(f"{self.path} has no weights to load; --load-format dummy makes random ones")
        return files

    def tokenizer_digest(self) -> str:
        """Returns the SHA-256 of tokenizer.json in hex, or "" if there is none."""
        file = self.path / "tokenizer.json"
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""


def read_checkpoint(
    path: Path,
    overrides: dict[str, Any],
    generation_config: str,
    generation_overrides: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Returns the Checkpoint in directory `path`; reads only its JSON files.

    `overrides` replace keys of config.json. `generation_config`: "auto" (the checkpoint's, if it has one), "vllm"
    (none: OpenAI's defaults), or another directory; `generation_overrides` replace its keys. Raises ModelError for a
    file that is not a JSON object, for an override that cannot be used, and if config.json or the other directory's
    generation_config.json is missing.
    """
    config = {**read_json(path / "config.json"), **overrides}
    generation: dict[str, Any] = {}
    if generation_config != "vllm":
        file = (path if generation_config == "auto" else Path(generation_config)) / FILE
        if file.exists():
            generation = read_json(file)
        elif generation_config != "auto":
            raise ModelError(f"--generation-config: {file} does not exist")
    return Checkpoint(path, config, GenerationConfig(generation, generation_overrides or {}))
