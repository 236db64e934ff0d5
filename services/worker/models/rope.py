"""Reads the rotary embedding of a config.json: its frequencies, and how long a request may be.

transformers 5 writes `rope_parameters`, older versions `rope_theta`, `rope_scaling` and `partial_rotary_factor`. The
formulas are those of transformers' modeling_rope_utils.py; "dynamic" is fixed for the longest request, as in vLLM.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from services.worker.errors import ModelError
from services.worker.models.description import Rope
from services.worker.models.settings import FULL_ATTENTION, Settings, positive

KEY, ORIGINAL = "rope_parameters", "original_max_position_embeddings"
ROWS = 65_536  # of a table that are computed at once


@dataclass(frozen=True)
class ReadRope:
    """`max_length`: tokens that a request may have; `default_length`: without --max-model-len."""

    rope: Rope
    max_length: int
    default_length: int


@dataclass(frozen=True)
class Parameters:
    """What the formulas need. `values`: the parameters of config.json; `rotary`: elements of a head that turn."""

    values: dict[str, Any]
    theta: float
    rotary: int
    positions: int  # max_position_embeddings
    max_model_len: int | None

    def number(self, name: str, default: float | None = None) -> float:
        return positive(self.values.get(name), f"{KEY}.{name}", default)

    @property
    def original(self) -> int:
        """Positions that the model was trained with before they were stretched."""
        return max(1, int(self.number(ORIGINAL, self.positions)))

    def powers(self, theta: float | None = None) -> Tensor:
        """Returns theta ** (2 i / rotary) [rotary / 2] float32."""
        exponents = torch.arange(0, self.rotary, 2, dtype=torch.int64).float() / self.rotary
        return torch.as_tensor((theta or self.theta) ** exponents)


def read_rope(
    settings: Settings,
    head_dim: int,
    *,
    theta: float = 10_000.0,
    share: float | None = None,
    interleaved: bool = False,
    renamed: dict[str, str] | None = None,
    queries_grow: bool = False,
    layer_type: str | None = None,
    theta_key: str = "rope_theta",
) -> ReadRope:
    """Returns the rotary embedding. `theta`, `share` (of a head that turns): where config.json does not say; a `share`
    of None: plain rope always turns whole heads. `renamed`: other names of types. `queries_grow`: llama_4_scaling_beta
    is read. `layer_type`: of the layers that it is for, where parameters are given for each type; `theta_key`: of the
    base, outside the parameters.

    Raises ModelError for a type, a size or a factor that cannot be used.
    """
    values = settings.object("rope_scaling") or settings.object(KEY)
    if layer_type is not None:
        values = _of_layers(values, layer_type)
    if any(isinstance(value, dict) for value in values.values()):
        raise ModelError(f"config.json: {KEY} for each type of layer are not supported")
    kind = str(values.get("rope_type") or values.get("type") or "default")
    kind = (renamed or {}).get(kind, kind)
    if kind not in TYPES:
        raise ModelError(f"config.json: rope_type {kind!r} is not supported, only {sorted(TYPES)}")
    base = positive(values.get("rope_theta"), f"{KEY}.rope_theta", settings.number(theta_key, theta))
    part = values.get("partial_rotary_factor")
    part = positive(part, f"{KEY}.partial_rotary_factor", settings.number("partial_rotary_factor", share or 1.0))
    if share is None and kind == "default" and part != 1:
        raise ModelError(f"config.json: partial_rotary_factor {part:g} is not supported for this architecture")
    rotary = int(head_dim * part)
    if rotary % 2 or not 0 < rotary <= head_dim:
        raise ModelError(
            f"config.json: partial_rotary_factor {part:g}: {rotary} of head_dim {head_dim} would turn, but the rotary"
            f" embedding needs an even number, at most {head_dim}"
        )
    if settings.raw(ORIGINAL) is not None:  # goes before that of KEY
        values[ORIGINAL] = settings.size(ORIGINAL)
    positions = settings.size("max_position_embeddings")
    parameters = Parameters(values, base, rotary, positions, settings.max_model_len)
    read = _computed(TYPES[kind], parameters)
    # As vLLM: some models say here that requests may be longer than max_position_embeddings.
    longest = max(read.max_length, settings.size("model_max_length", 1))
    growth = values.get("llama_4_scaling_beta")
    if growth is not None and not queries_grow:
        raise ModelError(f"config.json: {KEY}.llama_4_scaling_beta is not supported for this architecture")
    if growth is not None:
        if rotary != head_dim:
            raise ModelError(f"config.json: {KEY}.llama_4_scaling_beta needs partial_rotary_factor 1, not {part:g}")
        growth = (parameters.number("llama_4_scaling_beta"), parameters.original)
    rope = replace(read.rope, interleaved=interleaved, query_scaling=growth)
    return replace(read, rope=rope, max_length=longest)


def _of_layers(values: dict[str, Any], layer_type: str) -> dict[str, Any]:
    """Returns the parameters of a type of layers. If there is only one set, it is that of full attention, and layers
    with a window have plain rope."""
    if layer_type not in values and not any(isinstance(value, dict) for value in values.values()):
        return values if layer_type == FULL_ATTENTION else {}
    own = values.get(layer_type) or {}
    if not isinstance(own, dict):
        raise ModelError(f"config.json: {KEY}.{layer_type} is {own!r}, but must be an object")
    return dict(own)


def _computed(formula: Callable[[Parameters], ReadRope], parameters: Parameters) -> ReadRope:
    """Returns the formula's result. Raises ModelError if it cannot be computed with these parameters."""
    try:
        found = formula(parameters)
    except (ArithmeticError, ValueError, RuntimeError) as error:
        raise ModelError(f"config.json: no rotary embedding can be computed from {KEY}: {error}") from error
    if not all(map(math.isfinite, (*found.rope.frequencies, found.rope.factor))):
        raise ModelError(f"config.json: {KEY} give frequencies that are not finite")
    return found


def _read(frequencies: Tensor, max_length: float, factor: float = 1.0, default_length: int | None = None) -> ReadRope:
    length = int(max_length)
    return ReadRope(Rope(tuple(frequencies.tolist()), factor), length, default_length or length)


def _default(parameters: Parameters) -> ReadRope:
    return _read(1.0 / parameters.powers(), parameters.positions)


def _linear(parameters: Parameters) -> ReadRope:
    factor = parameters.number("factor")
    return _read(1.0 / parameters.powers() / factor, max(1.0, factor) * parameters.positions)


def _dynamic(parameters: Parameters) -> ReadRope:
    """Neural tangent kernel scaling for the length factor * max_position_embeddings."""
    factor, rotary = parameters.number("factor"), parameters.rotary
    if rotary < 4:
        raise ModelError(f"config.json: rope_type 'dynamic' needs at least 4 elements that turn, not {rotary}")
    stretched = parameters.theta * (factor * factor - (factor - 1)) ** (rotary / (rotary - 2))
    return _read(1.0 / parameters.powers(stretched), max(1.0, factor) * parameters.positions)


def _yarn(parameters: Parameters) -> ReadRope:
    """arXiv 2309.00071."""
    original, rotary, theta = parameters.original, parameters.rotary, parameters.theta
    factor = parameters.number("factor", parameters.positions / original)

    def dimension(rotations: float) -> float:
        """Returns the frequency that turns so often within the original length."""
        return rotary * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(parameters.number("beta_fast", 32)), dimension(parameters.number("beta_slow", 1))
    if parameters.values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary - 1)
    ramp = (torch.arange(rotary // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    kept = 1 - ramp.clamp(0, 1)
    powers = parameters.powers()
    frequencies = 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept
    return _read(frequencies, max(factor * original, parameters.positions), _yarn_factor(parameters, factor))


def _yarn_factor(parameters: Parameters, factor: float) -> float:
    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.values.get("attention_factor") is not None:
        return parameters.number("attention_factor")
    weight, weight_of_all = parameters.values.get("mscale"), parameters.values.get("mscale_all_dim")
    if weight and weight_of_all:
        return scale(parameters.number("mscale")) / scale(parameters.number("mscale_all_dim"))
    return scale(1.0)


def _longrope(parameters: Parameters) -> ReadRope:
    """arXiv 2402.13753. The long factors serve a max_model_len above the original length, the short ones all others."""
    original, positions = parameters.original, parameters.positions
    is_long = parameters.max_model_len is not None and parameters.max_model_len > original
    name = "long_factor" if is_long else "short_factor"
    factors, expected = parameters.values.get(name), parameters.rotary // 2
    if not isinstance(factors, list) or len(factors) != expected:
        raise ModelError(f"config.json: {KEY}.{name} must be a list of {expected} numbers")
    stretch = torch.tensor([positive(one, f"{KEY}.{name}") for one in factors], dtype=torch.float32)
    factor = parameters.number("factor", positions / original)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    frequencies = 1.0 / (stretch * parameters.powers())
    return _read(frequencies, positions, parameters.number("attention_factor", default), min(original, positions))


def _llama3(parameters: Parameters) -> ReadRope:
    """Llama 3.1: long waves are stretched, short ones are not, and those between are mixed."""
    factor, original = parameters.number("factor"), parameters.original
    low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
    frequencies = 1.0 / parameters.powers()
    waves = 2 * math.pi / frequencies
    slow = torch.where(waves > original / low, frequencies / factor, frequencies)
    share = (original / waves - low) / (high - low)
    mixed = (1 - share) * slow / factor + share * slow
    between = ~(waves < original / high) & ~(waves > original / low)
    return _read(torch.where(between, mixed, slow), parameters.positions)


TYPES: dict[str, Callable[[Parameters], ReadRope]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}


def rope_tables(rope: Rope, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the tables of queries and of keys, [length, rotary] float32: cosines, then sines, of each position's
    angles. They are the same tensor unless queries grow."""
    frequencies = torch.tensor(rope.frequencies, dtype=torch.float32)
    num = len(frequencies)
    keys = torch.empty(length, 2 * num)
    queries = keys if rope.query_scaling is None else torch.empty_like(keys)
    for begin in range(0, length, ROWS):
        rows = slice(begin, min(begin + ROWS, length))
        positions = torch.arange(rows.start, rows.stop).float()
        angles = torch.outer(positions, frequencies)
        keys[rows, :num], keys[rows, num:] = angles.cos(), angles.sin()
        keys[rows] *= rope.factor
        if rope.query_scaling is not None:
            beta, original = rope.query_scaling
            queries[rows] = keys[rows] * (1 + beta * torch.log(1 + torch.floor(positions / original)))[:, None]
    keys_there = keys.to(device)
    return keys_there if queries is keys else queries.to(device), keys_there


def table_bytes(rope: Rope, length: int) -> int:
    """Returns the bytes of rope_tables."""
    return length * 2 * len(rope.frequencies) * torch.float32.itemsize * (1 if rope.query_scaling is None else 2)
