"""Granite 3.x with experts (arXiv 2405.04324): Granite with a mixture, by softmax over the chosen ones."""

from dataclasses import replace

from services.worker.models.description import Description, Names, Router
from services.worker.models.families import granite
from services.worker.models.families.parts import gated_mlp, mixture
from services.worker.models.settings import Settings

DEFAULTS = {**granite.DEFAULTS, "num_local_experts": 8, "num_experts_per_tok": 2}
# The hub's spelling of what transformers 5 calls as others do.
RESPELLED = (
    ("block_sparse_moe.router.layer.", "mlp.gate."),
    ("block_sparse_moe.router.", "mlp.gate."),
    ("block_sparse_moe.input_linear.weight", "mlp.experts.gate_up_proj"),
    ("block_sparse_moe.output_linear.weight", "mlp.experts.down_proj"),
    ("block_sparse_moe.", "mlp."),
)


def describe(settings: Settings) -> Description:
    dense = granite.describe(settings)
    router = Router(settings.size("num_experts_per_tok"))
    experts = mixture(settings, "num_local_experts", gated_mlp(settings, bias=settings.flag("mlp_bias")), router)
    layers = tuple(replace(layer, mlp=experts) for layer in dense.layers)
    return replace(dense, layers=layers, names=Names(respelled=RESPELLED))
