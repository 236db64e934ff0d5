"""Checkpoints as they come from the hub: shards, overrides, generation defaults; and one clear line for each defect."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels import reference
from kernels.cpu import library
from kernels.cpu.library import load as load_library
from kernels.cpu.ops import CpuOps
from kernels.interface import Ops
from kernels.torch_ops import TorchOps
from services.options.declarations import WorkerOptions
from services.worker import weights
from services.worker.checkpoint import read_checkpoint, weights_digest
from services.worker.errors import ModelError
from services.worker.facts import model_facts
from services.worker.kv_cache import KvCacheShape, shape_kv_cache
from services.worker.loading import load_model, open_weights, pick_dtype, pick_ops
from services.worker.models.config import decoder_config
from tests.checkpoints import make_qwen3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_qwen3(tmp_path / "model", seed=1)


def load(path: Path, **options: Any) -> dict[str, torch.Tensor]:
    checkpoint, chosen = read_checkpoint(path, {}, "auto"), WorkerOptions(model=str(path), **options)
    config = decoder_config(checkpoint.config)
    return open_weights(checkpoint, chosen, config, pick_dtype(config, chosen))[0]


def change_config(path: Path, **changes: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_weights(path: Path, change: Any) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def test_shards_give_what_one_file_gives(path: Path, tmp_path: Path) -> None:
    sharded = make_qwen3(tmp_path / "sharded", seed=1, shard_size="200KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    whole = load(path)
    for name, tensor in load(sharded).items():
        assert torch.equal(tensor, whole[name]), name


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    sharded = make_qwen3(tmp_path / "sharded", seed=1, shard_size="200KB")
    gone = sorted(sharded.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelError, match=gone.name):
        load(sharded)


def test_dummy_weights_need_no_files_and_follow_the_seed(path: Path) -> None:
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights to load.*--load-format dummy"):
        load(path)
    first, again, other = (load(path, load_format="dummy", seed=seed) for seed in (1, 1, 2))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "1 tensors are missing.*model.norm.weight"),
        (lambda tensors: tensors.update({"surprise": torch.zeros(1)}), "unexpected tensor surprise"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(3)}),
            r"model.norm.weight has shape \[3\], config.json says \[64\]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(path: Path, change: Any, message: str) -> None:
    change_weights(path, change)
    with pytest.raises(ModelError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*Qwen3ForCausalLM"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type 'linear'"),
        ({"use_sliding_window": True}, "use_sliding_window = True"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"dtype": "int4"}, "dtype 'int4'"),
        ({"vocab_size": -5}, "vocab_size is -5, but must be an integer above 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"head_dim": 33}, "head_dim is 33, but the rotary embedding needs an even one"),
        ({"rope_parameters": 5}, "rope_parameters is 5, but must be an object"),
        ({"rope_parameters": {"rope_theta": "much"}}, "rope_theta is 'much', but must be a number"),
        ({"rms_norm_eps": True}, "rms_norm_eps is True"),
        ({"architectures": 5}, "architectures 5 are not supported"),
        ({"architectures": [[]]}, r"architectures \[\[\]\] are not supported"),
    ],
)
def test_what_the_decoder_cannot_compute_is_refused_by_name(path: Path, changes: dict[str, Any], message: str) -> None:
    change_config(path, **changes)
    with pytest.raises(ModelError, match=message):
        load(path)


def test_old_and_new_spellings_of_rope_and_dtype_mean_the_same(path: Path) -> None:
    new = decoder_config(json.loads((path / "config.json").read_text()))
    old = json.loads((path / "config.json").read_text())
    old["rope_theta"] = old.pop("rope_parameters")["rope_theta"]
    old["torch_dtype"] = old.pop("dtype")
    assert decoder_config(old) == new


def test_overrides_win_over_the_file(path: Path) -> None:
    checkpoint = read_checkpoint(path, {"max_position_embeddings": 99}, "auto")
    assert decoder_config(checkpoint.config).max_position_embeddings == 99


def test_generation_defaults_come_from_the_checkpoint_or_not_at_all(path: Path, tmp_path: Path) -> None:
    (path / "generation_config.json").write_text(
        json.dumps({"temperature": 0.6, "top_k": 20, "eos_token_id": [2, 0], "max_new_tokens": 9})
    )
    own = read_checkpoint(path, {}, "auto")
    assert (own.sampling_defaults.temperature, own.sampling_defaults.top_k, own.sampling_defaults.max_tokens) == (
        0.6,
        20,
        9,
    )
    assert own.eos_token_ids(10) == (2, 0)
    plain = read_checkpoint(path, {}, "vllm")
    assert (plain.sampling_defaults.temperature, plain.eos_token_ids(10)) == (1.0, (2,))
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": False, "temperature": 0.6}))
    assert read_checkpoint(path, {}, str(tmp_path)).sampling_defaults.temperature == 0.0
    with pytest.raises(ModelError, match="--generation-config"):
        read_checkpoint(path, {}, str(tmp_path / "nowhere"))


@pytest.mark.parametrize("eos", [99999, -1, [2, 99999], "2", [None], True])
def test_an_end_token_outside_the_vocabulary_is_refused(path: Path, eos: Any) -> None:
    """It would be masked under min_tokens, and there is nothing to mask."""
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(ModelError, match="is not a token of the vocabulary of 10"):
        read_checkpoint(path, {}, "auto").eos_token_ids(10)


def test_a_default_that_is_no_number_is_refused(path: Path) -> None:
    (path / "generation_config.json").write_text(json.dumps({"temperature": "hot"}))
    with pytest.raises(ModelError, match="temperature is 'hot', but must be a number"):
        _ = read_checkpoint(path, {}, "auto").sampling_defaults


@pytest.mark.parametrize("index", [{}, {"weight_map": 5}, {"weight_map": {"a": 5}}])
def test_an_index_without_file_names_is_refused(path: Path, index: Any) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="has no weight_map of file names"):
        read_checkpoint(path, {}, "auto").weight_files()


def test_the_weights_version_follows_every_tensor(path: Path) -> None:
    files = [path / "model.safetensors"]
    before = weights_digest(files)
    assert before == weights_digest(files)
    change_weights(path, lambda tensors: tensors["model.norm.weight"].add_(1))
    assert weights_digest(files) != before


def test_the_kv_cache_is_shaped_by_memory_and_length(path: Path) -> None:
    config = decoder_config(json.loads((path / "config.json").read_text()))
    per_block = 2 * 2 * 16 * 2 * 16 * 4

    def shape(blocks: int, length: int | None, seqs: int = 8) -> tuple[int, int]:
        made = shape_kv_cache(config, torch.float32, 16, blocks * per_block, length, seqs)
        return made.num_blocks, made.max_model_len

    assert shape(100, 160) == (80, 160), "no more than max_num_seqs requests could fill"
    assert shape(100, None) == (100, 512)
    assert shape(10, None) == (10, 160), "without a wish, the length is what fits"
    with pytest.raises(ModelError, match="room for 160 tokens.*one request of 170 tokens"):
        shape(10, 170)
    with pytest.raises(ModelError, match="--max-model-len 513.*max_position_embeddings, 512"):
        shape(100, 513)
    with pytest.raises(ModelError, match="room for 0 tokens"):
        shape(0, None)


@pytest.mark.parametrize("ops", [CpuOps(load_library()), TorchOps()], ids=lambda ops: str(ops.name))
@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16"])
def test_a_decoder_computes_with_the_checkpoints_weights(path: Path, ops: Ops, dtype: str) -> None:
    """Its matrices, made of parts of mapped files in another type, give what the plain tensors give."""
    decoder = load_model(path, WorkerOptions(model=str(path), device="cpu", dtype=dtype), ops).decoder
    named = {name: tensor.to(decoder.dtype) for name, tensor in load_file(path / "model.safetensors").items()}
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).to(decoder.dtype)
    for index, layer in enumerate(decoder._stack.layers):
        for matrix, parts in ((layer.qkv, ("q", "k", "v")), (layer.gate_up, ("gate", "up"))):
            block = "self_attn" if len(parts) == 3 else "mlp"
            weight = torch.cat([named[f"model.layers.{index}.{block}.{part}_proj.weight"] for part in parts])
            tight = 1e-5 if decoder.dtype == torch.float32 else 3e-2
            assert torch.allclose(matrix.product(x), reference.linear(x, weight).to(x.dtype), tight, tight)
        assert torch.equal(layer.input_norm, named[f"model.layers.{index}.input_layernorm.weight"])
    embedding = named["model.embed_tokens.weight"]
    assert torch.equal(decoder._embedding.rows(torch.arange(len(embedding))), embedding)


def test_a_loaded_decoder_does_not_need_its_files(path: Path) -> None:
    """Neither mapped any more nor read again: a checkpoint may be replaced under a server that runs."""
    decoder = load_model(path, WorkerOptions(model=str(path), device="cpu")).decoder
    plain = load_model(path, WorkerOptions(model=str(path), device="cpu"), TorchOps()).decoder
    assert str(path) not in Path("/proc/self/maps").read_text()
    before = [one._embedding.rows(torch.arange(8)).clone() for one in (decoder, plain)]
    (path / "model.safetensors").write_bytes(b"")
    assert all(
        torch.equal(one._embedding.rows(torch.arange(8)), rows)
        for one, rows in zip((decoder, plain), before, strict=True)
    )


def test_a_slow_load_shows_its_progress(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(weights, "PROGRESS_SECONDS", 0.0)
    with caplog.at_level("INFO"):
        load_model(path, WorkerOptions(model=str(path)))
    told = [int(record.getMessage().split("%")[0].split()[-1]) for record in caplog.records if "% of" in record.message]
    assert len(told) > 5 and told == sorted(told)
    assert 90 <= told[-1] <= 100


@pytest.mark.parametrize(
    ("device", "options", "said"),
    [
        ("cpu", {"quantization": "int8", "batch_invariant": False}, "int8 does not go with --no-batch-invariant"),
        ("cuda", {"quantization": "fp8", "batch_invariant": False}, "fp8 does not go with --no-batch-invariant"),
        ("cpu", {"quantization": "fp8"}, "fp8 is for CUDA only: use int8 with --device cpu"),
        ("cuda", {"quantization": "fp8"}, "fp8 needs a GPU of compute capability 8.9 or above; this one has 8.6"),
    ],
)
def test_weights_of_eight_bits_are_refused_where_no_kernel_has_them(
    device: str, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ModelError, match=f"--quantization {said}"):
        pick_ops(torch.device(device), WorkerOptions(**options))


@pytest.mark.parametrize(
    ("best", "options", "said"),
    [
        ("avx2", {}, "amx: this machine does not offer its instructions; this machine runs avx2, portable"),
        ("portable", {}, "amx: this machine does not offer its instructions; this machine runs portable"),
        ("amx", {"batch_invariant": False}, "amx does not go with --no-batch-invariant"),
        ("amx", {"device": "cuda"}, "amx is for a model on the CPU only: it does not go with --device cuda"),
        ("amx", {"device": "auto"}, "amx is for a model on the CPU only: it does not go with --device cuda"),
    ],
)
def test_kernels_that_cannot_run_are_refused_before_anything_is_read(
    tmp_path: Path, best: str, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "best_variant", lambda: best)
    monkeypatch.setattr(library, "_module", lambda variant: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: options.get("device", "cpu") != "cpu")
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path / "none", WorkerOptions(**{"device": "cpu", "cpu_kernels": "amx", **options}))
    assert str(caught.value).startswith(f"--cpu-kernels {said}") and "\n" not in str(caught.value)


def test_each_variant_has_its_numerics_id(path: Path) -> None:
    """The fastest has the same one, asked for or not."""
    runnable = library.runnable_variants()
    ids = []
    for variant in (None, *runnable):
        options = WorkerOptions(model=str(path), device="cpu", cpu_kernels=variant)
        ids.append(model_facts(load_model(path, options), options, KvCacheShape(8, 16, 128)).numerics_id)
    assert ids[0] == ids[1] and len(set(ids)) == len(runnable)


@pytest.mark.parametrize(("quantization", "name"), [(None, "triton"), ("int8", "triton+int8"), ("fp8", "triton+fp8")])
def test_on_cuda_there_are_all_of_them(quantization: str | None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name goes into the numerics id."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert pick_ops(torch.device("cuda"), WorkerOptions(quantization=quantization)).name == name
