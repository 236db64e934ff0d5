"""The tests of parity see every trait: a description with one trait changed does not give transformers' answers."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from kernels.cpu.library import load as load_library
from kernels.cpu.ops import CpuOps
from services.options.declarations import WorkerOptions
from services.process.worker_record import RecordFile
from services.worker.checkpoint import read_checkpoint
from services.worker.kv_cache import request_length
from services.worker.loading import open_weights
from services.worker.models.decoder import Decoder
from services.worker.models.describe import describe
from services.worker.weight_files import WeightFiles
from services.worker.weights import Weights
from tests.worker.models.flips import FLIPS, PARTS, SIZES, Change, Flip
from tests.worker.models.parity_cases import CASES, Case
from tests.worker.models.truth import TOLERANCE, log_probs, own_log_probs, prompts_of, saved

SAME = 5e-4  # error of any token's log-probability; unlikely ones are about -100


class Reference:
    """A case's checkpoint, and transformers' log-probabilities of prompts."""

    def __init__(self, case: Case, path: Path) -> None:
        model: PreTrainedModel
        self.case = case
        self.path, model = saved(case, path)
        self.prompts = prompts_of(case, 3)
        self.expected = [log_probs(model, prompt) for prompt in self.prompts]

    def error(self, change: Change) -> float:
        """Returns the largest error of a log-probability if the description is changed."""
        options = WorkerOptions(model=str(self.path), device="cpu", max_model_len=self.case.max_model_len)
        checkpoint = read_checkpoint(self.path, {}, "auto")
        description = describe(checkpoint.config, options.max_model_len)
        tensors, _ = open_weights(
            checkpoint, options, description, torch.float32, WeightFiles(RecordFile(None), every_byte=False)
        )
        length = request_length(description, options.max_model_len)
        decoder = Decoder(
            change(description), torch.float32, torch.device("cpu"), Weights(tensors), CpuOps(load_library()), length
        )
        found = [own_log_probs(decoder, prompt) for prompt in self.prompts]
        return max((one - other).abs().max().item() for one, other in zip(found, self.expected, strict=True))


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    names = {flip.case for flip in FLIPS}
    return {name: Reference(CASES[name], tmp_path_factory.mktemp("model") / name) for name in sorted(names)}


@pytest.mark.parametrize("flip", FLIPS, ids=lambda flip: f"{flip.case}-{flip.trait}")
def test_a_changed_trait_changes_the_answers(references: dict[str, Reference], flip: Flip) -> None:
    unchanged = references[flip.case].error(lambda description: description)
    assert unchanged <= SAME
    assert references[flip.case].error(flip.change) > 10 * max(unchanged, TOLERANCE)


def test_every_trait_is_changed_once() -> None:
    every = {f"{part.__name__}.{each.name}" for part in PARTS for each in fields(part)}
    assert {flip.trait for flip in FLIPS} == every - SIZES and every >= SIZES
