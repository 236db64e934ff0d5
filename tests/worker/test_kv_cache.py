"""The number of blocks and max_model_len follow from the memory."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_core.kv_cache_size import KvCacheSize
from engine_core.kv_groups import FULL, SlidingWindow
from engine_core.worker_messages import MAX_BLOCKS, BatchLimits
from services.process.worker_record import WorkerRecord
from services.worker.errors import ModelError
from services.worker.kv_cache import KvCacheShape, check_length, shape_again, shape_kv_cache
from services.worker.models.describe import describe
from services.worker.models.kv_layout import kv_layout


def test_the_kv_cache_is_shaped_by_memory_and_length(path: Path) -> None:
    config = describe(json.loads((path / "config.json").read_text()))
    per_block = 2 * 2 * 16 * 2 * 16 * 4

    def shape(blocks: int, length: int | None, seqs: int = 8) -> tuple[int, int]:
        layout, limits = kv_layout(config, length or 512), BatchLimits(1, seqs, 64)
        made = shape_kv_cache(config, layout, torch.float32, 16, blocks * per_block, length, limits)
        return made.num_blocks, made.max_model_len

    assert shape(100, 160) == (80, 160), "no more than max_num_seqs requests could fill"
    assert shape(100, None) == (100, 512)
    assert shape(10, None) == (10, 160), "without --max-model-len, the length is what fits"
    with pytest.raises(ModelError, match="room for 160 tokens.*one request of 170 tokens"):
        shape(10, 170)
    with pytest.raises(
        ModelError, match="--max-model-len 513 is above the model's 512 positions.*max_position_embeddings"
    ):
        shape(100, 513)
    with pytest.raises(ModelError, match="room for 0 tokens"):
        shape(0, None)


def test_a_windowed_model_has_room_for_longer_requests(path: Path) -> None:
    """One of the two layers has a window of 32 tokens: beside its 5 blocks, the other has what is left."""
    full = describe(json.loads((path / "config.json").read_text()))
    first, second = full.layers
    windowed = replace(second, attention=replace(second.attention, window=32))
    config, per_block = replace(full, layers=(first, windowed)), 2 * 16 * 2 * 16 * 4
    layout = kv_layout(config, 512)
    assert (layout.windows, layout.places, layout.groups) == ((0, 32), (0, 0), (0, 1))
    made = shape_kv_cache(config, layout, torch.float32, 16, 20 * per_block, None, BatchLimits(1, 8, 64))
    assert (made.num_blocks, made.max_model_len) == (20, 16 * (20 - 7)), "32 - 1 + 64 tokens touch 7 blocks at most"
    assert made.groups == (FULL, SlidingWindow(32, 64))


def test_there_are_no_more_blocks_than_messages_allow(path: Path) -> None:
    config = describe(json.loads((path / "config.json").read_text()))
    made = shape_kv_cache(
        config,
        kv_layout(config, 512),
        torch.float32,
        1,
        2**40,
        512,
        BatchLimits(1, max_num_seqs=8192, max_num_batched_tokens=64),
    )
    assert made.num_blocks == MAX_BLOCKS


def test_a_small_cache_of_a_windowed_model_names_the_budget_of_a_step(path: Path) -> None:
    full = describe(json.loads((path / "config.json").read_text()))
    layers = tuple(replace(layer, attention=replace(layer.attention, window=32)) for layer in full.layers)
    config = replace(full, layers=layers)
    with pytest.raises(ModelError, match="lower --max-model-len or --max-num-batched-tokens"):
        shape_kv_cache(config, kv_layout(config, 512), torch.float32, 16, 2**15, 512, BatchLimits(1, 8, 256))


def test_a_model_that_is_too_short_for_what_was_accepted_is_refused(path: Path) -> None:
    config = describe(json.loads((path / "config.json").read_text()))
    check_length(config, None, config.max_length)
    with pytest.raises(ModelError, match="up to 513 tokens.* or the model say 512"):
        check_length(config, None, 513)


def test_a_later_cache_is_as_large_as_the_first_if_that_fits_beside_a_step() -> None:
    record = WorkerRecord(cache=KvCacheSize(num_blocks=90, max_model_len=160, smallest=10))

    def again(record: WorkerRecord, budget: int, free: int) -> int:
        shape = shape_again(record, (FULL,), 16, per_block=100, budget=budget, free=free)
        assert shape == KvCacheShape(shape.num_blocks, 16, 160)
        return shape.num_blocks

    assert again(record, budget=100_000, free=200_000) == 90, "never more"
    assert again(record, budget=4_500, free=9_000) == 90, "the first was half of what was free then"
    assert again(record, budget=4_450, free=8_999) == 44, "the usual share of what is free"
    assert again(record, budget=9_000, free=8_000) == 80, "--kv-cache-memory-bytes is larger than what is free"
    assert again(record, budget=300, free=600) == 10, "but one request of full length"
    shrunk = WorkerRecord(cache=record.cache, shrinks=2)
    assert again(shrunk, budget=100_000, free=200_000) == 65
    assert again(shrunk, budget=5_000, free=6_000) == 50
