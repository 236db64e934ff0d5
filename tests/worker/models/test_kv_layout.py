"""How layers are put into KV groups: as many places in each, as little memory as possible, few groups."""

from dataclasses import replace

import pytest

from engine_core.kv_groups import FULL, SlidingWindow
from services.worker.models.describe import describe
from services.worker.models.description import Description
from services.worker.models.kv_layout import MAX_GROUPS, KvLayout, kv_layout

BASE = describe({"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 131072})


def model(*windows: int | None) -> Description:
    layer = BASE.layers[0]
    own = [replace(layer, attention=replace(layer.attention, window=window)) for window in windows]
    return replace(BASE, layers=tuple(own))


def memory(layout: KvLayout, length: int) -> int:
    """Returns the memory of a request in tokens of one layer."""
    return layout.num_places * sum(window or length for window in layout.windows)


def test_layers_without_a_window_are_one_group() -> None:
    layout = kv_layout(model(*[None] * 5), 1000)
    assert layout == KvLayout((0,), (0,) * 5, (0, 1, 2, 3, 4))
    assert layout.num_places == 5 and layout.policies(64) == (FULL,)


def test_a_window_that_no_request_leaves_is_none() -> None:
    assert kv_layout(model(1000, None), 1000).windows == (0,)
    assert kv_layout(model(999, None), 1000).windows == (0, 999)


def test_groups_alternate_as_layers_do() -> None:
    layout = kv_layout(model(8, None, 8, None), 1000)
    assert layout == KvLayout((0, 8), (1, 0, 1, 0), (0, 0, 1, 1))
    assert layout.policies(64) == (FULL, SlidingWindow(8, 64))


@pytest.mark.parametrize(
    ("windows", "num_places", "num_groups", "saved"),
    [
        ([512] * 22 + [None] * 4, 4, 7, 5.9),  # Gemma 3, 1B
        ([1024] * 52 + [None] * 10, 10, 7, 5.22),  # Gemma 3, 27B: 8 of 60 places with a window stay empty
        ([4096] * 13 + [None] * 13, 13, 2, 1.78),  # Gemma 2, 2B
        ([4096] * 24 + [None] * 8, 8, 4, 2.9),  # Cohere 2, 7B; OLMo 3
        ([4096] * 32, 32, 1, 8),  # Mistral 0.1
    ],
)
def test_known_models_save_what_their_layers_allow(
    windows: list[int | None], num_places: int, num_groups: int, saved: float
) -> None:
    """At 32,768 tokens, beside the same layers without windows."""
    layout = kv_layout(model(*windows), 32768)
    assert (layout.num_places, len(layout.windows)) == (num_places, num_groups)
    assert len(windows) * 32768 / memory(layout, 32768) == pytest.approx(saved, rel=0.02)


def test_one_layer_without_a_window_among_many_does_not_make_many_groups() -> None:
    layout = kv_layout(model(*[512] * 59, None), 32768)
    assert len(layout.windows) <= MAX_GROUPS and layout.windows[0] == 0
    pairs = list(zip(layout.groups, layout.places, strict=True))
    assert len(set(pairs)) == 60, "no two layers have one place of one group"
