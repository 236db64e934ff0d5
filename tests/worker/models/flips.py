"""Changes to descriptions, one trait each, and the case (parity_cases.py) whose answers they spoil."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from services.worker.models.description import (
    Attention,
    Description,
    HeadNorms,
    Layer,
    Mixture,
    Mlp,
    Norm,
    Rope,
    Router,
)

Change = Callable[[Description], Description]


def layers(change: Callable[[Layer], Layer]) -> Change:
    return lambda model: replace(model, layers=tuple(map(change, model.layers)))


def layer(**fields: Any) -> Change:
    return layers(lambda each: replace(each, **fields))


def norms(**fields: Any) -> Change:
    return layers(lambda each: replace(each, norm=replace(each.norm, **fields)))


def final_norm(**fields: Any) -> Change:
    return lambda model: replace(model, final_norm=replace(model.final_norm, **fields))


def attention(change: Callable[[Attention], Attention]) -> Change:
    return layers(lambda each: replace(each, attention=change(each.attention)))


def attentions(**fields: Any) -> Change:
    return attention(lambda each: replace(each, **fields))


def rope(change: Callable[[Rope], Rope]) -> Change:
    return attention(lambda each: replace(each, rope=each.rope and change(each.rope)))


def ropes(**fields: Any) -> Change:
    return rope(lambda each: replace(each, **fields))


def head_norms(change: Callable[[HeadNorms], HeadNorms]) -> Change:
    return attention(lambda each: replace(each, norms=each.norms and change(each.norms)))


def head_norm(**fields: Any) -> Change:
    return head_norms(lambda each: replace(each, norm=replace(each.norm, **fields)))


def mlps(**fields: Any) -> Change:
    return layers(lambda each: replace(each, mlp=replace(each.mlp, **fields)))


def mixture(change: Callable[[Mixture], Mixture]) -> Change:
    return layers(lambda each: replace(each, mlp=change(each.mlp)) if isinstance(each.mlp, Mixture) else each)


def routers(**fields: Any) -> Change:
    return mixture(lambda each: replace(each, router=replace(each.router, **fields)))


def experts(**fields: Any) -> Change:
    return mixture(lambda each: replace(each, expert=replace(each.expert, **fields)))


def model(**fields: Any) -> Change:
    return lambda each: replace(each, **fields)


def names(**fields: Any) -> Change:
    return lambda each: replace(each, names=replace(each.names, **fields))


def everywhere_rope(each: Description) -> Description:
    """Gives the layers without positions the rope of those with."""
    found = next(one.attention.rope for one in each.layers if one.attention.rope is not None)
    return attentions(rope=found)(each)


def fewer_wider_heads(each: Attention) -> Attention:
    return replace(each, heads=each.heads // 2, kv_heads=each.kv_heads // 2, head_dim=2 * each.head_dim)


def ungated(each: Description) -> Description:
    """Takes only the first of gate and up."""
    return replace(mlps(gated=False)(each), names=replace(each.names, inner=each.names.inner[:1]))


def full_attention_rope(each: Description) -> Description:
    """Gives the layers with a window the rope of those without."""
    found = next(one.attention.rope for one in each.layers if one.attention.window is None)
    return attentions(rope=found)(each)


@dataclass(frozen=True)
class Flip:
    """`trait`: the field of the description that the change is about, Class.field."""

    case: str
    trait: str
    change: Change


FLIPS = [
    Flip("llama-3", "Rope.frequencies", rope(lambda each: replace(each, frequencies=each.frequencies[::-1]))),
    Flip("llama-dynamic", "Rope.frequencies", ropes(frequencies=tuple(10000.0 ** -(i / 48) for i in range(48)))),
    Flip("stablelm", "Rope.frequencies", rope(lambda each: replace(each, frequencies=each.frequencies[:8]))),
    Flip("phi3-short", "Rope.factor", ropes(factor=1.0)),
    Flip("ministral3", "Rope.factor", ropes(factor=1.0)),
    Flip("cohere", "Rope.interleaved", ropes(interleaved=False)),
    Flip("llama-3", "Rope.interleaved", ropes(interleaved=True)),
    Flip("ministral3", "Rope.query_scaling", ropes(query_scaling=None)),
    Flip("qwen3", "HeadNorms.norm", head_norm(eps=1.0)),
    Flip("cohere-norms", "HeadNorms.norm", head_norm(centred=False)),
    Flip("stablelm-parallel", "HeadNorms.norm", head_norm(centred=False)),
    Flip("olmo2", "HeadNorms.over", head_norms(lambda each: replace(each, over="own"))),
    Flip("smollm3", "Attention.rope", attentions(rope=None)),
    Flip("smollm3-listed", "Attention.rope", everywhere_rope),
    Flip("gemma3", "Attention.rope", full_attention_rope),
    Flip("olmo3", "Attention.rope", full_attention_rope),
    Flip("cohere2", "Attention.rope", everywhere_rope),
    Flip("granite", "Attention.scale", attentions(scale=80**-0.5)),
    Flip("gemma2", "Attention.scale", attentions(scale=80**-0.5)),
    Flip("gemma2", "Attention.soft_cap", attentions(soft_cap=0.0)),
    Flip("gemma2", "Attention.window", attentions(window=20)),
    Flip("mistral", "Attention.window", attentions(window=None)),
    Flip("mistral", "Attention.window", attentions(window=20)),
    Flip("qwen2-tied", "Attention.window", attentions(window=17)),
    Flip("qwen2", "Attention.bias", attentions(bias=False)),
    Flip("seed-oss", "Attention.out_bias", attentions(out_bias=False)),
    Flip("qwen3", "Attention.norms", attentions(norms=None)),
    Flip("cohere-norms", "Attention.norms", attentions(norms=None)),
    Flip("olmo2", "Attention.norms", attentions(norms=None)),
    Flip("seed-oss-plain", "Attention.heads", attention(fewer_wider_heads)),
    Flip("seed-oss-plain", "Attention.kv_heads", attention(fewer_wider_heads)),
    Flip("seed-oss-plain", "Attention.head_dim", attention(fewer_wider_heads)),
    Flip("starcoder2", "Mlp.activation", mlps(activation="gelu")),
    Flip("starcoder2-plain", "Mlp.activation", mlps(activation="gelu_tanh")),
    Flip("llama-dynamic", "Mlp.activation", mlps(activation="gelu_tanh")),
    Flip("llama-3", "Mlp.activation", mlps(activation="gelu")),
    Flip("llama-3", "Mlp.gated", ungated),
    Flip("starcoder2", "Mlp.bias", mlps(bias=False)),
    Flip("granite", "Mlp.bias", mlps(bias=False)),
    Flip("gpt-oss", "Mlp.alpha", experts(alpha=1.0)),
    Flip("gpt-oss", "Mlp.limit", experts(limit=7.0)),
    Flip("gpt-oss", "Mlp.activation", experts(activation="silu")),
    Flip("gpt-oss", "Mlp.bias", experts(bias=False)),
    Flip("gpt-oss", "Attention.sinks", attentions(sinks=False)),
    Flip("gpt-oss", "Router.bias", routers(bias=False)),
    Flip("mixtral", "Router.top_k", routers(top_k=1)),
    Flip("mixtral", "Router.scores", routers(scores="sigmoid")),
    Flip("minimax-m2", "Router.scores", routers(scores="softmax")),
    Flip("glm4-moe", "Router.renormalised", routers(renormalised=False)),
    Flip("qwen3-moe-windowed", "Router.renormalised", routers(renormalised=True)),
    Flip("glm4-moe", "Router.correction", routers(correction=False)),
    Flip("glm4-moe", "Router.groups", routers(groups=2, kept_groups=1)),
    Flip("glm4-moe", "Router.kept_groups", routers(kept_groups=4)),
    Flip("glm4-moe", "Router.scale", routers(scale=1.0)),
    Flip("glm4-moe", "Mixture.shared", mixture(lambda each: replace(each, shared=None))),
    Flip("olmo2", "Norm.eps", norms(eps=1.0)),
    Flip("stablelm", "Norm.centred", norms(centred=False)),
    Flip("mistral", "Norm.centred", norms(centred=True)),
    Flip("starcoder2", "Norm.bias", norms(bias=False)),
    Flip("gemma2", "Norm.from_one", norms(from_one=False)),
    Flip("gemma3", "HeadNorms.norm", head_norm(from_one=False)),
    Flip("gemma3", "Description.final_norm", final_norm(from_one=False)),
    Flip("stablelm", "Layer.norms", layer(norms="parallel")),
    Flip("gemma2", "Layer.norms", layer(norms="input")),
    Flip("olmo2", "Layer.norms", layer(norms="input")),
    Flip("qwen2-tied", "Layer.norms", layer(norms="output")),
    Flip("granite", "Layer.residual_factor", layer(residual_factor=1.0)),
    Flip("mistral", "Description.final_norm", final_norm(eps=1.0)),
    Flip("stablelm", "Description.final_norm", final_norm(centred=False)),
    Flip("starcoder2", "Description.final_norm", final_norm(bias=False)),
    Flip("mistral", "Description.tied", model(tied=True)),
    Flip("granite", "Description.embedding_factor", model(embedding_factor=1.0)),
    Flip("granite", "Description.logit_factor", model(logit_factor=1.0)),
    Flip("cohere-norms", "Description.logit_factor", model(logit_factor=1.0)),
    Flip("gemma3", "Description.embedding_factor", model(embedding_factor=1.0)),
    Flip("gemma2", "Description.logit_soft_cap", model(logit_soft_cap=0.0)),
    Flip("mistral", "Description.layers", lambda each: replace(each, layers=each.layers[:1])),
    Flip("mistral", "Description.names", names(inner=("mlp.up_proj", "mlp.gate_proj"))),
]
# Fields that follow from a field above, hold such a dataclass, change no result, or are compared in test_decoder.py.
SIZES = {
    "Description.is_factor_rounded", "Mixture.count", "Mixture.expert", "Mixture.router",
    "Layer.attention", "Layer.mlp", "Layer.norm", "Mlp.size", "Description.vocab_size",
    "Description.hidden_size", "Description.dtype", "Description.max_length", "Description.default_length",
}  # fmt: skip
PARTS = (Rope, HeadNorms, Attention, Mlp, Router, Mixture, Norm, Layer, Description)
