"""The sampler on the device against the sampler on the CPU, and against itself: noise, draws, whole seeded answers."""

import functools
from collections.abc import Callable

import torch

from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import BatchLimits
from kernels.gpu.ops import TritonOps
from kernels.gpu.sample import draw, draw_scratch_bytes
from kernels.philox import gumbel_noise, philox4x32
from loadtest.gpu import parity
from loadtest.gpu.table import Check, Note
from services.options.declarations import WorkerOptions
from tests.kernels import draw_cases
from tests.worker.in_process import InProcess
from tests.worker.sample_rows import Row, row, sample

CPU = torch.device("cpu")
# Noise is a logarithm of a logarithm. CUDA's and the CPU's may each differ by 1 unit in the last place.
LOG_ULPS = 8


def checks(device: torch.device) -> list[Check]:
    runs: dict[str, Callable[[torch.device], str]] = {
        "philox words: bits of the CPU": words,
        "gumbel noise: numbers of the CPU": noise,
        "kernel draw: the twin's tokens, with every filter": kernel_draws,
        "kernel draw: a row alone, and in a batch": alone,
        "kernel draw: scratch memory as computed, no sync": scratch,
        "sampler: tokens and logprobs of the CPU": draws,
        "sampler: same answer again, and alone": repeats,
    }
    seeded = Check("seeded answers of the worker against the CPU's", functools.partial(answers, device))
    return [*(Check(name, functools.partial(run, device), alone=False) for name, run in runs.items()), seeded]


def words(device: torch.device) -> str:
    """Asserts that the device computes the words that Random123 publishes for the digits of pi as counter and key, and
    the CPU's words for random counters and keys. Returns the number of the latter as text."""
    counter, key = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]
    known = [
        int(word) for word in philox4x32(*([torch.tensor(n, device=device) for n in part] for part in (counter, key)))
    ]
    assert known == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1], f"not Random123's words: {known}"
    source = torch.Generator().manual_seed(1)
    drawn = [torch.randint(0, 2**32, (100_000,), generator=source) for _ in range(6)]
    here = philox4x32(drawn[:4], drawn[4:])
    there = philox4x32([n.to(device) for n in drawn[:4]], [n.to(device) for n in drawn[4:]])
    assert all(torch.equal(a, b.cpu()) for a, b in zip(here, there, strict=True)), "the words differ"
    return f"{4 * len(drawn[0])} words equal"


def noise(device: torch.device) -> str:
    seeds, choices, indices = [0, 1, 2**32, 2**64 - 1] * 4, list(range(16)), [0, 7, 10**6, 2**31 - 1] * 4
    here, there = (gumbel_noise(seeds, choices, indices, 20_001, where).cpu() for where in (CPU, device))
    if torch.equal(here, there):
        return f"{here.numel()} numbers bit for bit"
    # Near zero the error is absolute: one unit in the last place of 1.0.
    unit = 2.0**-52 * here.abs().clamp(min=1.0)
    worst = ((here - there).abs() / unit).max().item()
    assert worst <= LOG_ULPS, f"{worst:.0f} units in the last place apart, at most {LOG_ULPS}"
    share = (here != there).double().mean().item()
    return Note(f"not bit for bit: {share:.1%} of the numbers differ, by at most {worst:.1f} units in the last place")


def kernel_draws(device: torch.device) -> str:
    sizes = [1, 97, 5003, 151_936] if device.type == "cuda" else [97]
    values = [(None, False), (2, True), (None, True), (300, False)][: 4 if device.type == "cuda" else 1]
    count = 0
    for vocab in sizes:
        for levels, masked in values:
            logits, raw = draw_cases.logits_of(len(draw_cases.FILTERS), vocab, levels, masked and vocab > 1, seed=vocab)
            draw_cases.check_draw(device, logits, raw, draw_cases.draws_of(draw_cases.FILTERS, seed=vocab))
            count += len(logits)
    if device.type == "cuda":
        for kind in draw_cases.HOT:
            logits, raw = draw_cases.logits_of(1, 151_936, None, False, seed=9)
            logits, raw = logits.expand(64, -1).contiguous(), raw.expand(64, -1).contiguous()
            draw_cases.check_draw(device, logits, raw, draw_cases.draws_of([kind] * 64))
            count += 64
    return f"{count} rows, tokens equal"


def alone(device: torch.device) -> str:
    """Asserts that a row's token is the same alone, in a batch, and in repeated calls. With 5003 ids, rows begin at
    unaligned addresses. Returns the number of rows as text."""
    kinds = draw_cases.FILTERS if device.type == "cuda" else draw_cases.FILTERS[5:20:5]
    for vocab in (151_936, 5003) if device.type == "cuda" else (97,):
        logits = draw_cases.logits_of(len(kinds), vocab, None, False, seed=4)[0].to(device)
        draws = draw_cases.draws_of(kinds)
        together = draw(logits, logits, draws)[0].tolist()
        for _ in range(3):
            assert draw(logits, logits, draws)[0].tolist() == together, "the tokens differ between two calls"
        for index in range(len(kinds)):
            own = slice(index, index + 1)
            assert draw(logits[own], logits[own], draws[own])[0].tolist() == together[own], f"row {index} differs alone"
    return f"{len(kinds)} kinds of rows, the same tokens"


def scratch(device: torch.device) -> str:
    rows, vocab = (256, 151_936) if device.type == "cuda" else (2, 97)
    logits = random_logits(rows, vocab).to(device)
    draws = draw_cases.draws_of([(1.0, 0.9, 0.0, 0)] * rows)
    computed = draw_scratch_bytes(rows, vocab)
    draw(logits, logits, draws)
    if device.type != "cuda":
        return f"{computed >> 10} KiB reserved"
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        draw(logits, logits, draws)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    taken = torch.cuda.max_memory_allocated(device) - before
    assert taken <= computed + 2**20, f"{taken} bytes were taken, {computed} reserved"
    return f"{taken >> 20} MiB taken, {computed >> 20} MiB reserved"


def sampled_rows(count: int) -> list[Row]:
    """Returns `count` rows for the sampler that cover every sampling parameter, in turn."""
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9, "logprobs": 0},
        {"temperature": 1.3, "top_k": 50, "min_p": 0.01},
        {"temperature": 1.0, "top_k": 20, "top_p": 0.8, "logprobs": 5},
        {"temperature": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.5},
        {"temperature": 1.0, "min_tokens": 9, "eos_token_ids": (2,), "stop_token_ids": (5, 6)},
        {"temperature": 0.0, "repetition_penalty": 1.1},
        {"temperature": 1.0, "bias": {3: 4.0, 9: -100.0, 40: 2.5}, "presence_penalty": 0.5, "logprobs": 2},
        {"temperature": 1.0, "allowed": list(range(5, 90)), "bad_words": [[11], [7, 12], [7, 7, 13], [12, 14]]},
        {"temperature": 0.8, "top_p": 0.9, "allowed": list(range(2, 997)), "logprobs": 0, "logprob_ids": [9, 3, 9]},
    ]
    return [
        row(
            [3, 4, 4, 90],
            [7, 7, index % 50],
            seed=(index * 2**57 + index) % 2**64,
            choice=index % 3,
            **kinds[index % len(kinds)],
        )
        for index in range(count)
    ]


def random_logits(rows: int, vocab_size: int) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(2)) * 3


def draws(device: torch.device) -> str:
    count = 512 if device.type == "cuda" else 64
    logits, rows = random_logits(count, 5003), sampled_rows(count)
    ids, logprobs = sample(logits, rows)
    there_ids, there_logprobs = sample(logits.to(device), rows, TritonOps())
    different = [index for index in range(count) if ids[index] != there_ids[index]]
    assert not different, f"{len(different)} of {count} tokens differ, the first in row {different[0]}"
    worst = 0.0
    for here, there in zip(logprobs, there_logprobs, strict=True):
        assert (here is None) == (there is None)
        if here is not None and there is not None:
            assert here.token_ids == there.token_ids, "the top tokens differ"
            worst = max([worst, *(abs(a - b) for a, b in zip(here.values, there.values, strict=True))])
    assert worst <= 1e-5, f"logprobs {worst:.1e} apart"
    flat = torch.zeros(1, 97, device=device)
    tied = sample(flat, [row(temperature=0.0, logprobs=2)], TritonOps())[1][0]
    assert tied is not None and tied.token_ids == [0, 0, 1], "a tie does not go to the lowest id"
    return f"{count} tokens equal, logprobs within {worst:.1e}; ties to the lowest id"


def repeats(device: torch.device) -> str:
    count, vocab_size = (24, 151_936) if device.type == "cuda" else (8, 997)
    logits, rows, ops = random_logits(count, vocab_size).to(device), sampled_rows(count), TritonOps()
    first = sample(logits, rows, ops)
    assert all(sample(logits, rows, ops) == first for _ in range(20 if device.type == "cuda" else 2)), (
        "repeated calls differ"
    )
    for index in range(count):
        ids, logprobs = sample(logits[index : index + 1], rows[index : index + 1], ops)
        assert (ids[0], logprobs[0]) == (first[0][index], first[1][index]), f"row {index} differs when it is alone"
    return f"{count} rows of {vocab_size}: tokens and logprobs bit for bit"


def answers(device: torch.device) -> str:
    """Returns as text how many seeded answers equal the CPU's, and how many equal their repetition from the prefix
    cache.

    Logits of two devices differ in the last bits, so a draw near the edge between two tokens may differ. If any answer
    differs, the text is a Note, not a failure. Asserts that the draws are not greedy.
    """
    size = parity.size_for(device)
    case = parity.first_case(device)
    sampling = SamplingParams(max_tokens=size.max_tokens, temperature=0.8, top_p=0.95)
    seeds = list(range(100, 100 + len(case.prompts)))
    plain = WorkerOptions(
        model=str(case.path), device="cpu", dtype="float32", block_size=size.block_size, batch_invariant=False
    )  # by torch: the compiled kernels may not be there
    here = InProcess(case.path, plain, BatchLimits(1, 128, 2048)).complete(case.prompts, sampling, seeds)
    engine = parity.start(case.path, device, caching=True)
    there = engine.complete(case.prompts, sampling, seeds)
    again = engine.complete(case.prompts, sampling, seeds)
    greedy = [answer.token_ids for answer in case.expected]
    assert [answer.token_ids for answer in there] != greedy, "the draws are greedy"
    pairs = list(zip(here, there, strict=True))
    equal = sum(a.token_ids == b.token_ids for a, b in pairs)
    same_again = sum(a.token_ids == b.token_ids for a, b in zip(there, again, strict=True))
    text = f"{equal} of {len(pairs)} answers equal to the CPU's, {same_again} to its own from the prefix cache"
    return text if equal == same_again == len(pairs) else Note(text)
