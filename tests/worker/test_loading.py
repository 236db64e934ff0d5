"""Device and kernels are picked by the options; combinations that no kernel supports are refused in one line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.cpu import library
from kernels.gpu import card
from kernels.gpu import library as gpu_library
from services.options.declarations import WorkerOptions
from services.worker.errors import ModelError
from services.worker.loading import load_model, pick_ops


@pytest.mark.parametrize(
    ("device", "options", "text"),
    [
        ("cpu", {"quantization": "int8", "batch_invariant": False}, "int8 does not go with --no-batch-invariant"),
        ("cuda", {"quantization": "fp8", "batch_invariant": False}, "fp8 does not go with --no-batch-invariant"),
        ("cpu", {"quantization": "fp8"}, "fp8 is for CUDA only: use int8 with --device cpu"),
        ("cuda", {"quantization": "fp8"}, "fp8 needs a GPU of compute capability 8.9 or above; this one has 8.6"),
    ],
)
def test_weights_of_eight_bits_are_refused_where_no_kernel_has_them(
    device: str, options: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ModelError, match=f"--quantization {text}"):
        pick_ops(torch.device(device), WorkerOptions(**options))


@pytest.mark.parametrize(
    ("best", "options", "text"),
    [
        ("avx2", {}, "amx: this machine does not offer its instructions; this machine runs avx2, portable"),
        ("portable", {}, "amx: this machine does not offer its instructions; this machine runs portable"),
        ("amx", {"batch_invariant": False}, "amx does not go with --no-batch-invariant"),
        ("amx", {"device": "cuda"}, "amx is for a model on the CPU only: it does not go with --device cuda"),
        ("amx", {"device": "auto"}, "amx is for a model on the CPU only: it does not go with --device cuda"),
    ],
)
def test_kernels_that_cannot_run_are_refused_before_anything_is_read(
    tmp_path: Path, best: str, options: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "best_variant", lambda: best)
    monkeypatch.setattr(library, "_module", lambda variant: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: options.get("device", "cpu") != "cpu")
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path / "none", WorkerOptions(**{"device": "cpu", "cpu_kernels": "amx", **options}))
    assert str(caught.value).startswith(f"--cpu-kernels {text}") and "\n" not in str(caught.value)


@pytest.mark.parametrize(("quantization", "name"), [(None, "triton"), ("int8", "triton+int8"), ("fp8", "triton+fp8")])
def test_on_cuda_there_are_all_of_them(quantization: str | None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name goes into the numerics id, with cuBLAS's version where the card's table lists weights for it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for found, suffix in ((card.H100, f"+{gpu_library.version()}"), (card.Card(80, 108, 163 * 1024), "")):
        monkeypatch.setattr(card, "card_of", lambda device, found=found: found)
        assert pick_ops(torch.device("cuda"), WorkerOptions(quantization=quantization)).name == name + suffix


@pytest.mark.parametrize(("temperature", "lines"), [(0.6, 1), (1.0, 0)])
def test_a_line_at_the_start_names_the_sampling_defaults(
    path: Path, caplog: pytest.LogCaptureFixture, temperature: float, lines: int
) -> None:
    options = WorkerOptions(
        model=str(path), device="cpu", override_generation_config={"temperature": temperature}, generation_config="vllm"
    )
    with caplog.at_level("INFO"):
        load_model(path, options)
    found = [text for text in caplog.messages if text.startswith("sampling defaults")]
    assert found == ["sampling defaults of --override-generation-config: temperature 0.6"] * lines


OUT_OF_MEMORY = """
import resource, sys
from pathlib import Path
from services.options.declarations import WorkerOptions
from services.worker.errors import ModelError
from services.worker.loading import load_model

now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 200 * 2**20,) * 2)
try:
    load_model(Path(sys.argv[1]), WorkerOptions(device="cpu", load_format="dummy"))
except ModelError as error:
    print(error)
"""


def test_memory_that_runs_out_is_an_error_in_one_line(tmp_path: Path) -> None:
    """The check before it knows nothing of the limit of one process: it loads until an allocation fails."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 16}
    config = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ended = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, tmp_path], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stdout == "memory ran out while the weights were loaded: use a smaller model\n", ended.stderr


def test_weights_that_cannot_fit_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """There are no weights to read. Llama 3.1 405B's sizes."""
    sizes = {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128}
    config = {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 8, "vocab_size": 128256, **sizes}
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    with pytest.raises(
        ModelError, match=r"the weights take 811\.72 GB, the positions 0\.00 GB and the KV cache at least 0\.01 GB, but"
    ):
        load_model(tmp_path, WorkerOptions(device="cpu"))
