"""Changes to a checkpoint's files, for tests of what reads them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from services.options.declarations import WorkerOptions
from services.process.worker_record import RecordFile
from services.worker.checkpoint import read_checkpoint
from services.worker.loading import open_weights, pick_dtype
from services.worker.models.describe import describe
from services.worker.weight_files import WeightFiles


def load(path: Path, **options: Any) -> dict[str, torch.Tensor]:
    checkpoint, chosen = read_checkpoint(path, {}, "auto"), WorkerOptions(model=str(path), **options)
    description = describe(checkpoint.config)
    files = WeightFiles(RecordFile(None), every_byte=False)
    return open_weights(checkpoint, chosen, description, pick_dtype(description, chosen), files)[0]


def change_config(path: Path, **changes: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_weights(path: Path, change: Any) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
