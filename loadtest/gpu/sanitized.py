"""What sanitizer.py runs under compute-sanitizer: a tiny random model answers prompts in chunks, then decodes.

python -m loadtest.gpu.sanitized [--device cpu] [--graphs with|without]
"""

import argparse
import os
import tempfile
from pathlib import Path

from tests.interpreter import interpret

MAX_TOKENS = {"cuda": 12, "cpu": 2}
LENGTHS = {"cuda": (1, 5, 70, 33), "cpu": (1, 5)}
BUDGET = 48  # tokens of a step: the longest prompt takes chunks


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu.sanitized", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--graphs", choices=("with", "without"), default="with")
    args = parser.parse_args()
    # Triton reads the variable when it is imported.
    if args.device == "cpu":
        interpret()
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    print(answer(args.device, args.graphs == "with"))


def answer(device_name: str, graphs: bool) -> str:
    """Runs greedy and sampled requests on a tiny random model. Returns the numbers of answers and graphs as text."""
    import torch

    from engine_core.step_plan import SamplingParams
    from engine_core.worker_messages import BatchLimits
    from loadtest.gpu.parity import size_for, triton_ops
    from services.options.declarations import WorkerOptions
    from services.worker.device import CudaDevice, Device
    from tests.checkpoints import make_qwen3
    from tests.worker.fake_graph_device import FakeGraphDevice
    from tests.worker.in_process import InProcess

    place = torch.device(device_name)
    device: Device | None = None  # the usual one, with graphs
    if device_name == "cpu":
        device = FakeGraphDevice((1, 2, 4) if graphs else ())
    elif not graphs:
        device = CudaDevice(place)
        device.graph_sizes = ()
    config = next(iter(size_for(place).configs.values()))
    with tempfile.TemporaryDirectory() as folder:
        path = make_qwen3(Path(folder), seed=3, **config)
        options = WorkerOptions(
            model=str(path), device=device_name, dtype="bfloat16" if device_name == "cuda" else "float32",
            block_size=8, max_model_len=128, kv_cache_memory_bytes=2**24,
        )  # fmt: skip
        engine = InProcess(path, options, BatchLimits(1, 4, BUDGET), False, triton_ops(place), device=device)
        while engine.runner.capture_next_graph():
            pass
        prompts = [
            [(7 * row + place) % 1000 for place in range(length)] for row, length in enumerate(LENGTHS[device_name])
        ]
        count = 0
        for temperature in (0.0, 0.8):
            sampling = SamplingParams(
                max_tokens=MAX_TOKENS[device_name], temperature=temperature, top_k=50 if temperature else 0, logprobs=1
            )
            count += len(engine.complete(prompts, sampling, list(range(len(prompts)))))
    if device_name == "cuda":
        torch.cuda.synchronize(place)
    return f"{count} answers, {len(engine.runner._forward._graphs)} graphs"


if __name__ == "__main__":
    main()
