"""What the families share: sizes of heads, gated MLPs, layers that are all the same."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from services.worker.errors import ModelError
from services.worker.models.description import (
    Attention,
    Description,
    HeadNorms,
    Layer,
    Mixture,
    Mlp,
    Names,
    Norm,
    Router,
)
from services.worker.models.rope import ReadRope, read_rope
from services.worker.models.settings import FULL_ATTENTION, Settings

SLIDING = "sliding_attention"
MAX_LAYERS, MAX_HEADS, MAX_HEAD_DIM, MAX_EXPERTS = 10_000, 65_536, 65_536, 4096


def num_layers(settings: Settings) -> int:
    """Raises ModelError for more than MAX_LAYERS: each has objects of its own before memory is checked."""
    count = settings.size("num_hidden_layers")
    if count > MAX_LAYERS:
        raise ModelError(f"config.json: num_hidden_layers is {count}, but at most {MAX_LAYERS} are supported")
    return count


def heads(settings: Settings) -> tuple[int, int, int]:
    """Returns the numbers of heads and of key-value heads, and head_dim: by its key, or hidden_size / heads.

    Raises ModelError for numbers that do not fit.
    """
    hidden_size, count = settings.size("hidden_size"), settings.size("num_attention_heads")
    kv_heads = settings.size("num_key_value_heads", count)
    if count % kv_heads:
        raise ModelError(f"config.json: {count} attention heads cannot share {kv_heads} key-value heads")
    if count > MAX_HEADS:
        raise ModelError(f"config.json: num_attention_heads is {count}, but at most {MAX_HEADS} are supported")
    explicit = settings.raw("head_dim")
    if explicit is None and hidden_size % count:
        raise ModelError(f"config.json: hidden_size {hidden_size} is not a multiple of num_attention_heads {count}")
    head_dim = settings.size("head_dim") if explicit is not None else hidden_size // count
    if head_dim > MAX_HEAD_DIM:
        raise ModelError(f"config.json: head_dim is {head_dim}, but at most {MAX_HEAD_DIM} are supported")
    return count, kv_heads, head_dim


def attention(
    settings: Settings,
    rope: ReadRope,
    *,
    scale: float | None = None,
    bias: bool = False,
    out_bias: bool = False,
    norms: HeadNorms | None = None,
    window: int | None = None,
    soft_cap: float = 0.0,
    sinks: bool = False,
) -> Attention:
    """Returns attention with the settings' heads. `scale`: None for head_dim ** -0.5."""
    count, kv_heads, head_dim = heads(settings)
    scale = scale or head_dim**-0.5
    return Attention(count, kv_heads, head_dim, scale, rope.rope, window, bias, out_bias, norms, soft_cap, sinks)


def rope_of(settings: Settings, **options: Any) -> ReadRope:
    """Returns the rotary embedding of the settings' heads. `options`: those of read_rope."""
    return read_rope(settings, heads(settings)[2], **options)


def window_of(settings: Settings) -> int | None:
    """Returns sliding_window: how many tokens a token of a layer with a window attends to. None: no layer has one."""
    return None if settings.raw("sliding_window") is None else settings.size("sliding_window")


def switched_window(settings: Settings) -> int | None:
    """Returns window_of if use_sliding_window is true; else None, whatever sliding_window is."""
    settings.raw("sliding_window")
    return window_of(settings) if settings.flag("use_sliding_window") else None


def sliding_layers(settings: Settings, window: int | None, default: Sequence[bool]) -> list[bool]:
    """Returns for each layer whether it has the `window`: by layer_types, or else `default`.

    Raises ModelError for layer_types that do not fit, or ask for a window where there is none.
    """
    count, kinds = num_layers(settings), settings.raw("layer_types")
    if kinds is None:
        return list(default)
    if not isinstance(kinds, list) or len(kinds) != count or not {*map(str, kinds)} <= {SLIDING, FULL_ATTENTION}:
        raise ModelError(f"config.json: layer_types must be a list of {count} times {SLIDING!r} or {FULL_ATTENTION!r}")
    if window is None and SLIDING in kinds:
        raise ModelError(f"config.json: layer_types has {SLIDING!r}, but no sliding_window is used")
    return [kind == SLIDING for kind in kinds]


def sliding_by_pattern(settings: Settings, window: int | None) -> list[bool]:
    """Returns sliding_layers; without layer_types, all but every sliding_window_pattern-th layer have the window."""
    settings.raw("sliding_window_pattern")  # has no meaning beside layer_types
    listed = settings.raw("layer_types") is not None
    default = [] if listed else all_but_every(settings.size("sliding_window_pattern"), num_layers(settings))
    return sliding_layers(settings, window, default)


def windowed(layers: Sequence[Layer], sliding: Sequence[bool], window: int | None) -> list[Layer]:
    """Returns the layers, those that slide with the window."""
    pairs = zip(layers, sliding, strict=True)
    return [
        replace(layer, attention=replace(layer.attention, window=window)) if slides else layer
        for layer, slides in pairs
    ]


def ropes_by_window(layers: Sequence[Layer], sliding: Sequence[bool], rope: ReadRope) -> list[Layer]:
    """Returns the layers, those that slide with `rope`."""
    pairs = zip(layers, sliding, strict=True)
    return [
        replace(layer, attention=replace(layer.attention, rope=rope.rope)) if slides else layer
        for layer, slides in pairs
    ]


def turning_layers(layer: Layer, turning: Sequence[bool]) -> list[Layer]:
    """Returns a layer for each entry: `layer`, or the same without positions (NoPE, arXiv 2305.19466)."""
    still = replace(layer, attention=replace(layer.attention, rope=None))
    return [layer if turns else still for turns in turning]


def all_but_every(interval: int, count: int) -> list[bool]:
    """Returns `count` entries, of which every `interval`-th is False."""
    return [(index + 1) % interval != 0 for index in range(count)]


def gated_mlp(settings: Settings, *, bias: bool = False, activation: str = "hidden_act") -> Mlp:
    """`activation`: the name of its key."""
    return Mlp(settings.size("intermediate_size"), settings.activation(activation), bias=bias)


def mixture(settings: Settings, key: str, expert: Mlp, router: Router, shared: Mlp | None = None) -> Mixture:
    """Returns a mixture of as many experts as `key` says.

    Raises ModelError for more than MAX_EXPERTS, for groups that do not fit, and if a token has more experts than there
    are to choose from.
    """
    count = settings.size(key)
    if count > MAX_EXPERTS:
        raise ModelError(f"config.json: {key} is {count}, but at most {MAX_EXPERTS} experts are supported")
    if count % router.groups or router.kept_groups > router.groups:
        raise ModelError(
            f"config.json: {key} {count}, n_group {router.groups} and topk_group {router.kept_groups} do not fit"
        )
    if router.kept_groups < router.groups and count == router.groups:
        raise ModelError(f"config.json: n_group is {count} of {count} experts, but a group is ranked by its best two")
    if router.top_k > (choice := count // router.groups * router.kept_groups):
        raise ModelError(
            f"config.json: num_experts_per_tok is {router.top_k}, but {key} leaves {choice} to choose from"
        )
    return Mixture(count, expert, router, shared)


def with_mixtures(layer: Layer, experts: Mixture, mixed: Sequence[bool]) -> list[Layer]:
    """Returns a layer for each entry: `layer`, or the same with experts."""
    mixing = replace(layer, mlp=experts)
    return [mixing if mixes else layer for mixes in mixed]


def rms_norm(settings: Settings) -> Norm:
    return Norm(settings.number("rms_norm_eps"))


def decoder(
    settings: Settings,
    layers: Layer | Sequence[Layer],
    rope: ReadRope,
    final_norm: Norm,
    *,
    names: Names | None = None,
    **more: Any,
) -> Description:
    """Returns the description; one layer stands for all. `more`: further fields of Description."""
    every = (layers,) * num_layers(settings) if isinstance(layers, Layer) else tuple(layers)
    return Description(
        vocab_size=settings.size("vocab_size"),
        hidden_size=settings.size("hidden_size"),
        layers=every,
        final_norm=final_norm,
        tied=settings.flag("tie_word_embeddings"),
        dtype=settings.dtype(),
        max_length=rope.max_length,
        default_length=rope.default_length,
        names=names or Names(),
        **more,
    )
