"""The launches of a product that tiles.py times: tiles for Hopper, with segments in parallel and in sequence.

Only launches that can be good are candidates: their tiles fit shared memory and registers, and have few rows where the
product has few.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kernels.gpu.linear_tiling import STEP_BYTES, Launch, Schedule, Tile, workspace_bytes

COLUMNS, ROWS, STAGES, WARPS = (64, 128, 256), (16, 32, 64, 128, 256), (3, 4, 5, 6), (4, 8)
SHARED_BYTES = 227 * 1024  # of a program on sm_90
COLUMNS_PER_WARPGROUP = 64  # wgmma's rows; a warpgroup of four warps may also have two such parts
SUMS = 128  # float32 sums of a thread: one accumulator. A thread has 255 registers.
MIN_STAGE_BYTES = 64 * 1024  # of shared memory in all stages together, unless there are as many as possible


class Shape(NamedTuple):
    """A tile without its number of stages: kernels of the same shape are compiled by one check."""

    columns: int
    rows: int
    warps: int

    @property
    def sums(self) -> int:
        """Float32 sums of a thread."""
        return self.columns * self.rows // (32 * self.warps)


def shapes() -> list[Shape]:
    """Returns every shape whose accumulator fits the registers, and of which each warpgroup has one or two parts of 64
    columns."""
    found = [Shape(columns, rows, warps) for columns in COLUMNS for rows in ROWS for warps in WARPS]
    parts = (1, 2)
    return [
        shape
        for shape in found
        if shape.sums <= SUMS and shape.columns * 4 / (shape.warps * COLUMNS_PER_WARPGROUP) in parts
    ]


def stages_of(shape: Shape) -> list[int]:
    """Returns the numbers of STAGES that fit shared memory, without those that hold too few bytes to hide the memory's
    latency if a larger number fits."""
    stage = (shape.columns + shape.rows) * STEP_BYTES
    fitting = [stages for stages in STAGES if stages * stage <= SHARED_BYTES]
    return [stages for stages in fitting if stages * stage >= MIN_STAGE_BYTES or stages == fitting[-1]]


def can_walk(shape: Shape, segments: int) -> bool:
    """Returns whether one program can compute all segments: several need a second accumulator."""
    return segments == 1 or 2 * shape.sums <= SUMS


def candidates(rows: int, n: int, schedule: Schedule) -> Iterator[Launch]:
    """Yields the launches to time for a product of `rows` rows with a weight of n outputs.

    The segments' sums of a launch in parallel fit the planned workspace. A single segment is "in parallel" alone:
    it has no second accumulator then.
    """
    fewest, most = fitting_rows(rows)
    for shape in shapes():
        if not fewest <= shape.rows <= most:
            continue
        partial = schedule.segments * rows * n * 4
        splits = [True] if schedule.segments == 1 or partial <= workspace_bytes(rows) else []
        splits += [False] if schedule.segments > 1 and can_walk(shape, schedule.segments) else []
        for stages in stages_of(shape):
            for split in splits:
                yield Launch(Tile(shape.columns, shape.rows, shape.warps, stages), split)


def fitting_rows(rows: int) -> tuple[int, int]:
    """Returns (fewest, most) rows of a tile for a product of `rows` rows: at most the next of ROWS, and at least half
    of that or 64, whichever is less."""
    padded = next((each for each in ROWS if each >= rows), ROWS[-1])
    return min(64, max(ROWS[0], padded // 2)), padded
