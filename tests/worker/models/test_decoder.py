"""A decoder computes with the checkpoint's weights, and holds copies of them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kernels import reference
from kernels.cpu.library import load as load_library
from kernels.cpu.ops import CpuOps
from kernels.interface import Ops
from kernels.program import Multiply, Norm, Operation, Place
from kernels.torch_ops import TorchOps
from services.options.declarations import WorkerOptions
from services.worker.loading import load_model
from tests.worker.models.parity_cases import CASES, TWO_HEADS_OF_80, Case

HEADS, INNER = Place.QKV, Place.INTERMEDIATE


def has_target(operation: Operation, place: Place) -> bool:
    return isinstance(operation, Multiply) and operation.target is place


@pytest.mark.parametrize("ops", [CpuOps(load_library()), TorchOps()], ids=lambda ops: str(ops.name))
@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16"])
def test_a_decoder_computes_with_the_checkpoints_weights(path: Path, ops: Ops, dtype: str) -> None:
    """Fused matrices, built from memory-mapped parts of another dtype, give the products of the plain tensors."""
    decoder = load_model(path, WorkerOptions(model=str(path), device="cpu", dtype=dtype), ops).decoder
    named = {name: tensor.to(decoder.dtype) for name, tensor in load_file(path / "model.safetensors").items()}
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).to(decoder.dtype)
    operations = iter(decoder._stack._operations)
    for index in range(len(decoder.description.layers)):
        qkv, inner = (next(each for each in operations if has_target(each, place)) for place in (HEADS, INNER))
        for operation, block, parts in ((qkv, "self_attn", "qkv"), (inner, "mlp", ("gate", "up"))):
            weight = torch.cat([named[f"model.layers.{index}.{block}.{part}_proj.weight"] for part in parts])
            tight = 1e-5 if decoder.dtype == torch.float32 else 3e-2
            product = operation.matrix.product(x)
            assert torch.allclose(product, reference.linear(x, weight).to(x.dtype), tight, tight)
    norm = next(each for each in decoder._stack._operations if isinstance(each, Norm))
    assert torch.equal(norm.weight, named["model.layers.0.input_layernorm.weight"].float())
    embedding = named["model.embed_tokens.weight"]
    assert torch.equal(decoder._embedding.rows(torch.arange(len(embedding))), embedding)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", ["gemma2", "granite"])
def test_embeddings_are_scaled_as_by_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, dtype: str
) -> None:
    """Gemma rounds the factor, here the root of 160, to the activations' dtype; Granite does not."""
    factor = {"embedding_multiplier": 160**0.5} if model_type == "granite" else {}
    case = Case(model_type, {**CASES[model_type].config, **TWO_HEADS_OF_80, **factor})
    options = WorkerOptions(model=str(case.save(tmp_path)), device="cpu", dtype=dtype, max_model_len=256)
    decoder, ids = load_model(tmp_path, options).decoder, torch.arange(50)
    their = case.reference(tmp_path, decoder.dtype).model
    expected = their.embed_tokens(ids) * getattr(their, "embedding_multiplier", 1.0)
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(decoder, "_stack", lambda hidden, *rest: seen.append(hidden.clone()))
    decoder.forward(ids, ids, [], [], ids)
    assert torch.equal(seen[0], expected)


def test_a_loaded_decoder_does_not_need_its_files(path: Path) -> None:
    """Files are not mapped or read after loading: a checkpoint may be replaced while a server runs."""
    decoder = load_model(path, WorkerOptions(model=str(path), device="cpu")).decoder
    plain = load_model(path, WorkerOptions(model=str(path), device="cpu"), TorchOps()).decoder
    assert str(path) not in Path("/proc/self/maps").read_text()
    before = [one._embedding.rows(torch.arange(8)).clone() for one in (decoder, plain)]
    (path / "model.safetensors").write_bytes(b"")
    assert all(
        torch.equal(one._embedding.rows(torch.arange(8)), rows)
        for one, rows in zip((decoder, plain), before, strict=True)
    )
