"""Prints the peak memory of a model's largest step, measured and computed, in bytes above that of the loaded weights.

    python -m tests.worker.peak CHECKPOINT MAX_NUM_SEQS MAX_NUM_BATCHED_TOKENS MAX_MODEL_LEN [OPTION ...]

Options: --no-batch-invariant; --profile prints the profile run's value instead. Run it in a process of its own. Only
config.json of the checkpoint is read.
"""

import ctypes
import gc
import random
import sys
from itertools import product
from pathlib import Path

import msgspec

from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from services.worker.building import profiled_peak_bytes
from services.worker.loading import load_model
from services.worker.memory import step_bytes
from services.worker.profile_sampling import everything
from tests.worker.fake_graph_device import FakeGraphDevice
from tests.worker.in_process import InProcess

MAX_TOKENS = 3


def status_bytes(name: str) -> int:
    """Returns VmRSS of this process, or its peak VmHWM, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def release() -> None:
    """Returns freed memory to the system, so that a step cannot reuse it, and resets VmHWM."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM


class PeakDevice(FakeGraphDevice):
    """A device that reports the process's peak memory as its used memory."""

    def __init__(self) -> None:
        super().__init__(())

    def used_bytes(self) -> int:
        return status_bytes("VmHWM")

    def release_cached_memory(self) -> None:
        release()


def main(argv: list[str]) -> None:
    path, limits = Path(argv[0]), BatchLimits(1, int(argv[1]), int(argv[2]))
    length, invariant = int(argv[3]), "--no-batch-invariant" not in argv
    options = WorkerOptions(
        model=str(path), device="cpu", load_format="dummy", max_model_len=length, batch_invariant=invariant,
        kv_cache_memory_bytes=2**28,
    )  # fmt: skip
    model = load_model(path, options)
    if "--profile" in argv:
        sys.stdout.write(f"{profiled_peak_bytes(model.decoder, options, limits, PeakDevice())}\n")
        return
    release()
    before = status_bytes("VmRSS")
    worker = InProcess(path, options, limits, model=model)
    kv_bytes = 0
    pairs = {id(pair): pair for pair in worker.runner._forward._cache}  # layers with one place share theirs
    for tensor in (tensor for pair in pairs.values() for tensor in pair):
        tensor.fill_(0)  # commits its pages now, so that they do not count as a step's
        kv_bytes += tensor.nbytes
    release()
    source, vocab = random.Random(0), worker.facts.vocab_size
    sampling = everything(vocab, logprobs=worker.facts.max_logprobs, max_tokens=MAX_TOKENS)
    scored = msgspec.structs.replace(sampling, prompt_logprobs=worker.facts.max_logprobs)
    # The largest number of rows; then one request of the largest length; without and with logprobs of the prompts.
    for count, params in product((limits.max_num_seqs, 1), (sampling, scored)):
        size = min(limits.max_num_batched_tokens // count, length - MAX_TOKENS)
        worker.complete([[source.randrange(vocab) for _ in range(size)] for _ in range(count)], params)
    computed = step_bytes(model.decoder.description, model.decoder.dtype, model.decoder.ops, options, limits)
    sys.stdout.write(f"{status_bytes('VmHWM') - before - kv_bytes} {computed}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
