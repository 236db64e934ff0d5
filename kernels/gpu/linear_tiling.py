"""How a product is launched (linear.py): the order of its sums, by the weight; tiles and split-K, by rows and card.

Batch invariance: only the Schedule decides a row's bits, and it follows from the weight's shape and dtype alone. The
launch is the fastest by a measured table of the card (tile_table.py), else by an estimate. No bit depends on it.
docs/decisions/0020-gpu-products.md
"""

import functools
from typing import NamedTuple

import torch

from kernels.gpu import tile_table
from kernels.gpu.card import Card
from kernels.gpu.rounding import cdiv

STEP_BYTES = 128  # of one row of x in one K-step
PROGRAMS = 256  # target number of programs for one row, if K is long enough to split
MIN_STEPS, MAX_SEGMENTS = 4, 16  # K-steps per segment, segments per weight
MAX_PARTIAL_BYTES = 64 * 2**20  # of the segments' sums, in a launch with one program per segment

# Output tiles: columns, rows, warps; 64 columns per four warps. From float32 only those of at most MAX_FLOAT32 elements
# are taken: the registers of a larger one would spill.
SHAPES = ((64, 16, 4), (64, 32, 4), (64, 64, 4), (128, 64, 8), (128, 128, 8), (128, 256, 8))
MAX_FLOAT32 = 64 * 64
ONE_ACCUMULATOR = 128 * 128  # a larger tile has registers for the sum of one segment, not for the total as well
MIN_STAGES, STAGES, MAX_STAGES = 3, 4, 6

# The estimate, in cycles of one multiprocessor of an H100, from its data sheet; only ratios matter.
MATRIX_RATE = 4096  # 16-bit operations
L2_RATE, MEMORY_RATE = 64, 14  # bytes; MEMORY_RATE is its share of the card's
PROGRAM_CYCLES, LAUNCH_CYCLES = 1000, 2500  # to fill and drain a program's pipeline; a kernel more


class Schedule(NamedTuple):
    """A weight's order of summation along K."""

    block_k: int  # elements of a K-step
    steps: int  # per segment; the last segment may have fewer
    segments: int  # split-K


class Tile(NamedTuple):
    """Output tile of a program, `columns` by `rows`, and the depth of its software pipeline."""

    columns: int
    rows: int
    num_warps: int
    num_stages: int


class Launch(NamedTuple):
    tile: Tile
    split: bool  # one program per output tile and segment; else one per tile


def schedule_for(n: int, k: int, dtype: torch.dtype) -> Schedule:
    """Returns the order of summation along K for a weight [n, k] and activations of `dtype`.

    It depends neither on the rows nor on the card.
    """
    block_k = STEP_BYTES // dtype.itemsize
    num_steps = cdiv(k, block_k)
    columns = SHAPES[0][0]
    segments = min(cdiv(PROGRAMS, cdiv(n, columns)), num_steps // MIN_STEPS, MAX_SEGMENTS)
    steps = cdiv(num_steps, max(1, segments))
    return Schedule(block_k, steps, cdiv(num_steps, steps))


def workspace_bytes(rows: int) -> int:
    """Returns an upper bound, for any weight, of the segments' sums of a product of `rows` rows, in bytes."""
    # PROGRAMS tiles of segments, twice that if the last segments are partial.
    return min(rows * 2 * PROGRAMS * SHAPES[0][0] * torch.float32.itemsize, MAX_PARTIAL_BYTES)


@functools.cache
def tiles_of(card: Card, dtype: torch.dtype) -> tuple[Tile, ...]:
    """Returns the tiles for activations of `dtype`, the smallest first.

    Stages: as many as let two programs share a multiprocessor, from STAGES, if they fit, to MAX_STAGES.
    """
    tiles = []
    for columns, rows, warps in SHAPES:
        stage = (columns + rows) * STEP_BYTES
        shared = min(card.shared_bytes // 2 // stage, MAX_STAGES)
        stages = max(shared, min(card.shared_bytes // stage, STAGES))
        if stages >= MIN_STAGES and (dtype != torch.float32 or columns * rows <= MAX_FLOAT32):
            tiles.append(Tile(columns, rows, warps, stages))
    return tuple(tiles)


class Launches:
    """The launches of the products with one weight [n, k], by the number of rows."""

    def __init__(self, n: int, k: int, dtype: torch.dtype, weight_dtype: torch.dtype, card: Card) -> None:
        """`dtype`: of the activations."""
        self.schedule = schedule_for(n, k, dtype)
        self._n, self._k, self._card = n, k, card
        self._itemsize = dtype.itemsize, weight_dtype.itemsize
        tiles = tiles_of(card, dtype)
        # An 8-bit weight's tile is widened in registers.
        self._tiles = tiles if weight_dtype == dtype else [tile for tile in tiles if _is_light(tile)]
        self._measured = tile_table.entries(card, n, k, dtype, weight_dtype)
        self._at: dict[int, Launch] = {}

    def at(self, rows: int) -> Launch:
        """Returns the launch of a product of `rows` rows."""
        launch = self._at.get(rows)
        if launch is None:
            launch = self._at[rows] = self._fastest(rows)
        return launch

    def row_classes(self, most: int) -> list[int]:
        """Returns the smallest number of rows, up to `most`, of each launch, ascending."""
        unit = SHAPES[0][1]
        counts = [1, 2, *range(unit + 1, most + 1, unit), *(entry.rows + 1 for entry in self._measured)]
        first: dict[Launch, int] = {}
        for rows in sorted(count for count in counts if count <= most):
            first.setdefault(self.at(rows), rows)
        return sorted(first.values())

    def candidates(self, rows: int) -> list[Launch]:
        """Returns the launches whose sums fit the registers, and the segments' sums the workspace."""
        segments = self.schedule.segments
        partial = segments * rows * self._n * torch.float32.itemsize
        found = [Launch(tile, False) for tile in self._tiles if segments == 1 or _is_light(tile)]
        if segments > 1 and partial <= MAX_PARTIAL_BYTES:
            found = [Launch(tile, True) for tile in self._tiles] + found
        return found

    def _fastest(self, rows: int) -> Launch:
        for entry in self._measured:
            if rows <= entry.rows:
                return Launch(Tile(*entry.tile), entry.split)
        return min(self.candidates(rows), key=lambda launch: self.cycles(launch, rows))

    def cycles(self, launch: Launch, rows: int) -> float:
        """Returns an estimate of a launch's time: of the busiest multiprocessor, or of reading the weight."""
        (columns, tile_rows, *_), (block_k, steps, segments) = launch.tile, self.schedule
        x_bytes, weight_bytes = self._itemsize
        tiles = cdiv(rows, tile_rows) * cdiv(self._n, columns)
        programs = tiles * segments if launch.split else tiles
        if not launch.split:
            steps = cdiv(self._k, block_k)
        loaded = (columns * weight_bytes + tile_rows * x_bytes) * block_k
        step = max(2 * columns * tile_rows * block_k / MATRIX_RATE, loaded / L2_RATE)
        computing = cdiv(programs, self._card.processors) * (PROGRAM_CYCLES + steps * step)
        busy = min(programs, self._card.processors)
        total: float = max(computing, self._n * self._k * weight_bytes / (busy * MEMORY_RATE))
        if launch.split and segments > 1:
            moved = 2 * segments * rows * self._n * torch.float32.itemsize  # written and read
            total += LAUNCH_CYCLES + moved / (self._card.processors * L2_RATE / 2)
        return total


def _is_light(tile: Tile) -> bool:
    return tile.columns * tile.rows <= ONE_ACCUMULATOR


@functools.cache
def launches_for(n: int, k: int, dtype: torch.dtype, weight_dtype: torch.dtype, card: Card) -> Launches:
    return Launches(n, k, dtype, weight_dtype, card)
