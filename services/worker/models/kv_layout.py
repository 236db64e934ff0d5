"""Which layers share blocks of the KV cache: the KV groups of a model.

All layers of a group attend equally far back. All groups have as many places for layers, so that a block of any group
takes the same memory, and all take their blocks from one pool: layers with the same place in different groups share a
tensor. Places without a layer stay empty. docs/kv-cache.md, docs/decisions/0052-kv-groups.md
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine_core.kv_groups import FULL, KvGroup, SlidingWindow
from services.worker.models.description import Description

MAX_GROUPS = 8  # each costs the engine and every step a little


@dataclass(frozen=True)
class KvLayout:
    """`windows`: tokens that each group's layers attend to, 0 for all, which come first. `groups` and `places`: of each
    layer, its group and its place there."""

    windows: tuple[int, ...]
    groups: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def num_places(self) -> int:
        return 1 + max(self.places)

    def layer_at(self, place: int) -> int:
        """Returns a layer with this place; all of them have keys and values of one size."""
        return self.places.index(place)

    def policies(self, max_step_tokens: int) -> tuple[KvGroup, ...]:
        """Returns the groups as the engine knows them. A step computes at most `max_step_tokens` of a request."""
        return tuple(SlidingWindow(window, max_step_tokens) if window else FULL for window in self.windows)


def kv_layout(model: Description, length: int) -> KvLayout:
    """Returns the layout with which a request of `length` tokens needs the least memory, of those with MAX_GROUPS at
    most; the one with the fewest groups among equals. A window that such a request never leaves is none."""
    windows = [_window(layer.attention.window, length) for layer in model.layers]
    kinds = sorted(set(windows), key=lambda window: (window > 0, -window))
    members = [[index for index, own in enumerate(windows) if own == window] for window in kinds]
    tokens = [window or length for window in kinds]

    def cost(num_places: int) -> tuple[int, int]:
        """Returns (memory in tokens of a layer, number of groups)."""
        counts = [-(-len(layers) // num_places) for layers in members]
        held = sum(count * each for count, each in zip(counts, tokens, strict=True))
        return num_places * held, sum(counts)

    sizes = {(layer.attention.kv_heads, layer.attention.head_dim) for layer in model.layers}
    assert len(kinds) == 1 or len(sizes) == 1, "layers of several groups share tensors: their keys have one size"
    fitting = [size for size in range(1, len(windows) + 1) if cost(size)[1] <= max(MAX_GROUPS, len(kinds))]
    return _layout(model, kinds, members, min(fitting, key=cost))


def _window(window: int | None, length: int) -> int:
    return 0 if window is None or window >= length else window


def _layout(model: Description, kinds: Sequence[int], members: Sequence[Sequence[int]], num_places: int) -> KvLayout:
    windows: list[int] = []
    groups, places = [0] * len(model.layers), [0] * len(model.layers)
    for window, layers in zip(kinds, members, strict=True):
        for number, layer in enumerate(layers):
            groups[layer], places[layer] = len(windows) + number // num_places, number % num_places
        windows += [window] * -(-len(layers) // num_places)
    return KvLayout(tuple(windows), tuple(groups), tuple(places))
