"""The limit of a step from first principles, and the goals: which share of its limit each step is to reach.

The limit is the sum of each operation's own limit: an operation takes at least the time to move its bytes at the memory
rate, and to do its multiplications and additions at the matrix rate (a roofline: doi 10.1145/1498765.1498785). The
time to launch kernels is not in it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from loadtest.gpu.limits import Limits
from loadtest.gpu.table import Measured, Note
from services.worker.models.description import Description, Layer

LOGIT_BYTES = 4  # float32

# Of (model, row): the share of the limit that a step is to reach, with batch-invariant kernels.
SHARES = {
    ("0.6B", "decode, 1 running"): 0.40,
    ("0.6B", "decode, 32 running"): 0.60,
    ("0.6B", "decode, 256 running"): 0.60,
    ("0.6B", "prefill"): 0.45,
    ("8B", "decode, 1 running"): 0.70,
    ("8B", "decode, 32 running"): 0.70,
    ("8B", "decode, 256 running"): 0.70,
    ("8B", "prefill"): 0.60,
}
DECODE_WAIT, ARRIVALS_WAIT = 0.01, 0.03  # wait shares that a step is to stay below
AT_ONCE = 30.0  # times as fast: 50 requests at once against one by one


@dataclass(frozen=True)
class Goal:
    """`text` names the goal; `reached`: whether the measurement meets it."""

    text: str
    reached: bool


def at_least(share: float, goal: float) -> Goal:
    return Goal(f"goal {goal:.0%}", share >= goal)


def wait_below(share: float, goal: float) -> Goal:
    return Goal(f"goal wait below {goal:.0%}", share < goal)


def times_as_fast(times: float, goal: float) -> Goal:
    return Goal(f"goal {goal:.0f} times", times >= goal)


def judged(text: str, goals: Iterable[Goal], **data: object) -> Measured:
    """Returns the detail of a row: `text`, then each goal and whether it was reached. A Note if one was missed."""
    goals = list(goals)
    parts = [text, *(f"{goal.text}: {'reached' if goal.reached else 'missed'}" for goal in goals)]
    kind = Measured if all(goal.reached for goal in goals) else Note
    return kind("; ".join(parts), **data, goals={goal.text: goal.reached for goal in goals})


@dataclass(frozen=True)
class Work:
    """What an operation must do at least: move `moved` bytes, and `operations` multiplications and additions."""

    moved: float
    operations: float = 0.0

    def seconds(self, rates: Limits) -> float:
        return max(self.moved / rates.memory, self.operations / rates.matrix)


@dataclass(frozen=True)
class Batch:
    """The requests of a step: (new tokens, tokens computed before) of each, and how many tokens are sampled."""

    requests: tuple[tuple[int, int], ...]
    sampled: int

    @property
    def count(self) -> int:
        return sum(new for new, _ in self.requests)

    @property
    def keys(self) -> int:
        """Tokens whose key and value are read."""
        return sum(new + before for new, before in self.requests)

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that the mask lets it see."""
        return sum(new * before + new * (new + 1) // 2 for new, before in self.requests)


def step_seconds(model: Description, itemsize: int, batch: Batch, rates: Limits) -> dict[str, float]:
    """Returns the limit of a step in seconds by kind of operation: products, attention, pointwise, head. Their sum is
    the step's.

    `itemsize`: bytes of an element of weights, activations and KV. Layers have no sliding windows here. Behind the last
    attention only the sampled tokens are computed, as in Decoder.
    """
    found: defaultdict[str, float] = defaultdict(float)
    for kind, work in _operations(model, itemsize, batch):
        found[kind] += work.seconds(rates)
    return dict(found)


def product(rows: int, n: int, k: int, itemsize: int, out_itemsize: int, weight_itemsize: int) -> Work:
    """Returns the work of a product of [rows, k] and a weight [n, k]."""
    moved = n * k * weight_itemsize + rows * (k * itemsize + n * out_itemsize)
    return Work(moved, 2 * rows * n * k)


def _operations(model: Description, itemsize: int, batch: Batch) -> Iterator[tuple[str, Work]]:
    hidden, vocab, last = model.hidden_size, model.vocab_size, len(model.layers) - 1
    yield "pointwise", Work(2 * batch.count * hidden * itemsize)  # the embedding's rows
    for index, layer in enumerate(model.layers):
        yield from _layer(layer, hidden, itemsize, batch, batch.sampled if index == last else batch.count)
    yield "pointwise", Work(4 * batch.sampled * hidden * itemsize)  # the last norm and its addition
    yield "head", product(batch.sampled, vocab, hidden, itemsize, LOGIT_BYTES, itemsize)
    yield "head", Work(batch.sampled * vocab * LOGIT_BYTES)  # the draw reads the logits


def _layer(layer: Layer, hidden: int, itemsize: int, batch: Batch, rows_behind: int) -> Iterator[tuple[str, Work]]:
    """Yields the operations of a layer, of which those behind attention compute `rows_behind` rows."""
    attention, (mlp,), rows = layer.attention, layer.mlps, batch.count

    def multiply(rows: int, n: int, k: int) -> tuple[str, Work]:
        return "products", product(rows, n, k, itemsize, itemsize, itemsize)

    def pointwise(elements: int) -> tuple[str, Work]:
        return "pointwise", Work(elements * itemsize)

    yield pointwise(4 * rows * hidden)  # norm and addition: reads two rows, writes two
    yield multiply(rows, attention.qkv_size, hidden)
    yield pointwise(2 * rows * attention.qkv_size)  # the rotary embedding: queries, and keys and values into the cache
    moved = 2 * batch.keys * attention.key_size + 2 * rows * attention.query_size
    yield "attention", Work(moved * itemsize, 4 * batch.pairs * attention.query_size)
    yield multiply(rows_behind, hidden, attention.query_size)
    yield pointwise(4 * rows_behind * hidden)
    yield multiply(rows_behind, mlp.inner_size, hidden)
    yield pointwise(rows_behind * (mlp.inner_size + mlp.size))
    yield multiply(rows_behind, hidden, mlp.size)
