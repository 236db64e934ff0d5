"""A description becomes the operations that it says, in order; interleaved heads are ordered in halves at load."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.program import Activate, Add, Attend, Multiply, Norm, Operation, Place, Select
from kernels.torch_ops import TorchOps
from services.worker.models.describe import describe
from services.worker.models.description import Description
from services.worker.models.kv_layout import kv_layout
from services.worker.models.operations import ProgramWriter
from services.worker.models.rope import rope_tables
from services.worker.models.tensors import parameter_shapes
from services.worker.weights import Weights, dummy_weights

CPU, LENGTH = torch.device("cpu"), 32
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": LENGTH,
}  # fmt: skip


def described(architecture: str, **more: Any) -> Description:
    return describe({**SIZES, "architectures": [architecture], **more}, LENGTH)


def tensors_of(model: Description) -> dict[str, Tensor]:
    return dummy_weights(parameter_shapes(model), torch.float32, 1)


def program(model: Description) -> list[Operation]:
    writer = ProgramWriter(
        model, torch.float32, CPU, Weights(tensors_of(model)), TorchOps(), LENGTH, kv_layout(model, LENGTH)
    )
    writer.matrix("model.embed_tokens")
    if not model.tied:
        writer.matrix("lm_head")
    return writer.program()


BEFORE = ["Norm", "Multiply", "Attend", "Multiply", "Norm", "Multiply", "Activate", "Multiply"]
BEHIND = ["Multiply", "Norm", "Norm", "Attend", "Multiply", "Norm", "Add", "Multiply", "Activate", "Multiply", "Norm"]
PARALLEL = ["Norm", "Multiply", "Attend", "Multiply", "Add", "Multiply", "Activate", "Multiply"]


@pytest.mark.parametrize(
    ("architecture", "layer", "between"),
    [
        ("LlamaForCausalLM", BEFORE, []),
        ("Olmo2ForCausalLM", BEHIND, ["Add"]),
        ("CohereForCausalLM", PARALLEL, []),
    ],
)
def test_layers_are_the_operations_of_their_order(architecture: str, layer: list[str], between: list[str]) -> None:
    operations = program(described(architecture))
    found = [type(operation).__name__ for operation in operations]
    at = layer.index("Attend") + 1
    assert found == [*layer, *between, *layer[:at], "Select", *layer[at:], "Norm"]
    (selected,) = (operation for operation in operations if isinstance(operation, Select))
    parallel = layer is PARALLEL
    assert selected.places == (Place.RESIDUAL, Place.ATTENTION, *([Place.NORMED] if parallel else []))


def test_factors_biases_and_activations_are_the_familys() -> None:
    operations = program(described("GraniteForCausalLM", residual_multiplier=0.25, attention_multiplier=0.5))
    assert [each.adds for each in operations if isinstance(each, Norm)] == [None, 0.25, 0.25, 0.25, 0.25]
    assert {each.scale for each in operations if isinstance(each, Attend)} == {0.5}
    operations = program(described("Starcoder2ForCausalLM"))
    assert all(each.bias is not None for each in operations if isinstance(each, Multiply))
    assert all(each.centred and each.bias is not None for each in operations if isinstance(each, Norm))
    assert {(each.kind, each.gated) for each in operations if isinstance(each, Activate)} == {("gelu_tanh", False)}
    assert not any(isinstance(each, Add) for each in operations)


def test_layers_with_the_same_rope_share_its_tables() -> None:
    attends = [
        each for each in program(described("SmolLM3ForCausalLM", no_rope_layers=[1, 0])) if isinstance(each, Attend)
    ]
    assert attends[0].tables is not None and attends[1].tables is None
    first, second = (each for each in program(described("LlamaForCausalLM")) if isinstance(each, Attend))
    assert first.tables is second.tables


def test_interleaved_heads_in_halves_give_the_same_scores() -> None:
    """Scores of rotated queries and keys: pairs turned as Cohere has them, and halves of the rows in the new order."""
    model = described("CohereForCausalLM")
    attention = model.layers[0].attention
    assert attention.rope is not None and attention.rope.interleaved
    (multiply, *_) = (each for each in program(model) if isinstance(each, Multiply))
    tensors = tensors_of(model)
    x, positions = torch.randn(7, 32, generator=torch.Generator().manual_seed(2)), torch.arange(7)
    table, _ = rope_tables(replace(attention.rope, interleaved=False), LENGTH, CPU)
    heads = multiply.matrix.product(x).view(7, 8, 8)
    turned = reference.norm_rope(heads[:, :6], None, 0.0, table, positions)
    plain = torch.cat([x @ tensors[f"model.layers.0.self_attn.{part}_proj.weight"].T for part in "qkv"], dim=1)
    pairs = plain.view(7, 8, 4, 2)
    cos, sin = table[positions].view(7, 1, 2, 4).unbind(2)
    first, second = pairs[:, :6, :, 0], pairs[:, :6, :, 1]
    expected = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(2)
    torch.testing.assert_close(turned[:, :4] @ turned[:, 4:].mT, expected[:, :4] @ expected[:, 4:].mT)
    torch.testing.assert_close(heads[:, 6:], plain.view(7, 8, 8)[:, 6:])
