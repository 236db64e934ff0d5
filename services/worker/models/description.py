"""What a decoder computes, layer by layer: all that follows from config.json.

Names and shapes of tensors (tensors.py), operations (operations.py), KV cache and memory follow from it. Traits that no
family here has are not in it; a checkpoint that needs one is refused by the name of its key (settings.py).
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Norm:
    """RMS norm (arXiv 1910.07467), or layer norm (arXiv 1607.06450) with or without a bias."""

    eps: float
    centred: bool = False  # layer norm
    bias: bool = False
    from_one: bool = False  # the checkpoint has the weights less one


@dataclass(frozen=True)
class Rope:
    """Rotary embedding (arXiv 2104.09864) of the first 2 * len(frequencies) elements of each head.

    `factor` multiplies cosines and sines. `interleaved`: pairs are (0, 1), (2, 3), … in the checkpoint, not halves.
    `query_scaling`: queries at position p are multiplied by 1 + beta * log(1 + p // length); (beta, length).
    """

    frequencies: tuple[float, ...]  # radians per position
    factor: float = 1.0
    interleaved: bool = False
    query_scaling: tuple[float, int] | None = None


@dataclass(frozen=True)
class HeadNorms:
    """Norm of queries and keys before the rotary embedding.

    `over`: each head with the same weights [head_dim], each head with its own, or the whole width [heads * head_dim].
    """

    norm: Norm
    over: Literal["head", "own", "width"] = "head"


@dataclass(frozen=True)
class Attention:
    heads: int
    kv_heads: int
    head_dim: int
    scale: float  # of the scores
    rope: Rope | None  # None: no positions
    window: int | None = None  # a token attends to so many, itself included (arXiv 2004.05150); None: to all before it
    bias: bool = False  # of queries, keys and values
    out_bias: bool = False
    norms: HeadNorms | None = None
    soft_cap: float = 0.0  # scores become soft_cap * tanh(score / soft_cap) (arXiv 2408.00118); 0: they stay
    sinks: bool = False  # each head has one more key, without a value, with a score of its own (arXiv 2309.17453)

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        return self.query_size + 2 * self.key_size


@dataclass(frozen=True)
class Mlp:
    size: int
    activation: str  # one of kernels.program.ACTIVATIONS
    gated: bool = True
    bias: bool = False  # of all its matrices
    alpha: float = 1.0  # of clamped_silu, as `limit`
    limit: float = 0.0

    @property
    def inner_size(self) -> int:
        return self.size * (2 if self.gated else 1)


@dataclass(frozen=True)
class Router:
    """Which experts a token has, and their weights, by the scores that a linear layer gives all experts.

    `scores`: softmax over all experts, or sigmoid of each. `renormalised`: a token's weights are divided by their sum;
    with softmax that is a softmax over the chosen ones. `correction`: each expert has a number that is added to its
    score for the choice alone. `groups`: experts are chosen from the best `kept_groups` groups (arXiv 2412.19437).
    """

    top_k: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    renormalised: bool = True
    bias: bool = False  # of the linear layer
    correction: bool = False
    groups: int = 1
    kept_groups: int = 1
    scale: float = 1.0  # of the weights


@dataclass(frozen=True)
class Mixture:
    """A mixture of `count` experts (arXiv 1701.06538), each an MLP; `shared`: an MLP of all tokens, added to it."""

    count: int
    expert: Mlp
    router: Router
    shared: Mlp | None = None


@dataclass(frozen=True)
class Layer:
    """`norms`: of the inputs of attention and MLP (pre-norm), of their outputs (OLMo 2), of both (Gemma 2), or one for
    the inputs of both, which then run in parallel."""

    attention: Attention
    mlp: Mlp | Mixture
    norm: Norm
    norms: Literal["input", "output", "sandwich", "parallel"] = "input"
    residual_factor: float = 1.0  # of what attention and MLP add

    @property
    def mlps(self) -> tuple[Mlp, ...]:
        """Its MLP, or an expert of its mixture, and the shared one."""
        if isinstance(self.mlp, Mlp):
            return (self.mlp,)
        return (self.mlp.expert, self.mlp.shared) if self.mlp.shared is not None else (self.mlp.expert,)


@dataclass(frozen=True)
class Fused:
    """A tensor [experts, rows, columns] with the `parts` of all experts, one behind the other or in turn
    (`interleaved`), their outputs along rows, or along columns (`transposed`). Biases are [experts, rows]."""

    name: str
    parts: tuple[str, ...]
    transposed: bool = False
    interleaved: bool = False


@dataclass(frozen=True)
class Names:
    """Names of tensors, without `.weight` and `.bias`; a part has several where the checkpoint splits it. Sinks have
    neither ending.

    `head_norms`: with `{}`, a tensor for each head. `renamed`: beginnings of other spellings, and what they stand for.
    `skipped`: beginnings of tensors that a text does not need.
    """

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out: str = "self_attn.o_proj"
    head_norms: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm")
    sinks: str = "self_attn.sinks"
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")  # as they are computed
    inner: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    expert: str = "mlp.experts.{}."  # begins the parts of each expert, which are named as those of an MLP are
    shared: str = "mlp.shared_experts."
    fused: tuple[Fused, ...] = (
        Fused("mlp.experts.gate_up_proj", ("gate_proj.weight", "up_proj.weight")),
        Fused("mlp.experts.down_proj", ("down_proj.weight",)),
    )
    respelled: tuple[tuple[str, str], ...] = ()  # parts of other spellings, and what they stand for
    renamed: tuple[tuple[str, str], ...] = ()
    skipped: tuple[str, ...] = ("mtp.", "model.mtp.")  # multi-token prediction


@dataclass(frozen=True)
class Description:
    """A decoder. Sizes in elements, lengths in tokens."""

    vocab_size: int
    hidden_size: int
    layers: tuple[Layer, ...]
    final_norm: Norm
    tied: bool  # the head is the embedding
    dtype: str  # of the checkpoint
    max_length: int
    default_length: int
    embedding_factor: float = 1.0
    is_factor_rounded: bool = False  # the embedding's, to the dtype of the activations
    logit_factor: float = 1.0
    logit_soft_cap: float = 0.0  # logits become logit_soft_cap * tanh(logit / logit_soft_cap); 0: they stay
    names: Names = field(default_factory=Names)
