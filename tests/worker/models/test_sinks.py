"""Attention with sinks, as a decoder's program computes it, is that of transformers' GptOssAttention; also in steps."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding

from kernels.cpu.library import load
from kernels.cpu.ops import CpuOps
from kernels.interface import AttentionInputs, Ops
from kernels.program import Multiply, Operation, Place
from kernels.stack import EagerRun
from kernels.torch_ops import TorchOps
from services.worker.models.description import Attention, Description, Layer, Mlp, Norm
from services.worker.models.kv_layout import kv_layout
from services.worker.models.operations import ProgramWriter
from services.worker.models.rope import read_rope
from services.worker.models.settings import Settings
from services.worker.models.tensors import parameter_shapes
from services.worker.weights import Weights
from tests.kernels.cases import randn, share_of, tolerance
from tests.worker.models.parity_cases import BASE, YARN, spread

CPU = torch.device("cpu")
WINDOW, LENGTH, BLOCK_SIZE = 20, 70, 8
KINDS = {"full_attention": None, "sliding_attention": WINDOW}
CONFIG = GptOssConfig(
    **{**BASE, "head_dim": 64, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96},
    layer_types=list(KINDS), sliding_window=WINDOW, rope_parameters=YARN,
)  # fmt: skip
CONFIG._attn_implementation = "eager"


def described(kind: str) -> Description:
    settings = Settings({"rope_parameters": YARN, "max_position_embeddings": CONFIG.max_position_embeddings})
    rope = read_rope(settings, CONFIG.head_dim)
    heads, kv_heads = CONFIG.num_attention_heads, CONFIG.num_key_value_heads
    attention = Attention(
        heads, kv_heads, CONFIG.head_dim, CONFIG.head_dim**-0.5, rope.rope, KINDS[kind], True, True, sinks=True
    )
    layer, norm = Layer(attention, Mlp(8, "silu"), Norm(1e-6)), Norm(1e-6)
    return Description(BASE["vocab_size"], CONFIG.hidden_size, (layer,), norm, True, "float32", 512, 512)


@torch.inference_mode()
def theirs(module: GptOssAttention, hidden: Tensor, window: int | None) -> Tensor:
    every = torch.arange(LENGTH)
    distance = every[:, None] - every
    allowed = (distance >= 0) & (distance < (window or LENGTH))
    mask = torch.zeros(LENGTH, LENGTH).masked_fill(~allowed, float("-inf"))
    cos_sin = GptOssRotaryEmbedding(CONFIG)(hidden[None], every[None])
    found: Tensor = module(hidden[None], cos_sin, mask[None, None])[0][0]
    return found


def operations_of(description: Description, module: GptOssAttention, ops: Ops) -> list[Operation]:
    """Returns the operations from the projection of queries, keys and values to that of attention's output."""
    shapes = parameter_shapes(description)
    assert shapes["model.layers.0.self_attn.sinks"] == (CONFIG.num_attention_heads,)
    tensors = {name: torch.ones(shape) for name, shape in shapes.items()}
    tensors |= {f"model.layers.0.self_attn.{name}": each for name, each in module.state_dict().items()}
    assert tensors.keys() == shapes.keys()
    layout = kv_layout(description, LENGTH)
    program = ProgramWriter(description, torch.float32, CPU, Weights(tensors), ops, LENGTH, layout).program()
    places = [at for at, each in enumerate(program) if isinstance(each, Multiply) and each.target is Place.QKV]
    ends = [at for at, each in enumerate(program) if isinstance(each, Multiply) and each.source is Place.ATTENTION]
    return program[places[0] : ends[0] + 1]


@torch.inference_mode()
def ours(operations: list[Operation], hidden: Tensor, ops: Ops, cuts: list[int]) -> Tensor:
    """Returns attention's output [tokens, hidden size], computed in steps that end at `cuts`."""
    heads, dim = CONFIG.num_key_value_heads, CONFIG.head_dim
    num_blocks = -(-LENGTH // BLOCK_SIZE)
    cache = ops.allocate_kv_cache(num_blocks, BLOCK_SIZE, heads, dim, torch.float32, CPU)
    found = []
    for first, last in pairwise([0, *cuts, LENGTH]):
        every, count = torch.arange(first, last), last - first
        inputs = AttentionInputs(
            slot_mapping=every,
            block_tables=torch.arange(num_blocks, dtype=torch.int32)[None],
            query_start_loc=torch.tensor([0, count], dtype=torch.int32),
            seq_lens=torch.tensor([last], dtype=torch.int32),
            num_decodes=int(count == 1),
            max_query_len=count,
            max_seq_len=last,
        )
        run = EagerRun(ops, hidden[first:last], every, [cache], [inputs], torch.arange(count))
        run.activations[Place.NORMED] = hidden[first:last].contiguous()
        for operation in operations:
            run.do(operation)
        found.append(run.activations[Place.HIDDEN])
    return torch.cat(found)


@pytest.mark.parametrize("make_ops", [lambda: CpuOps(load(), 2), TorchOps], ids=["compiled", "torch"])
@pytest.mark.parametrize("layer", range(len(KINDS)), ids=list(KINDS))
def test_attention_with_sinks_is_that_of_transformers(layer: int, make_ops: type[Ops]) -> None:
    module = GptOssAttention(CONFIG, layer).eval()
    spread(module, 3)
    with torch.no_grad():
        module.sinks.add_(2.0)
    hidden, ops = randn(CPU, torch.float32, LENGTH, CONFIG.hidden_size), make_ops()
    kind = CONFIG.layer_types[layer]
    expected = theirs(module, hidden, KINDS[kind])
    operations = operations_of(described(kind), module, ops)
    allowed = 10 * tolerance(expected, floor=1.0)
    for cuts in ([], [33, 65, 66, 67]):
        share_of(ours(operations, hidden, ops, cuts), expected, allowed)
    with torch.no_grad():
        module.sinks.fill_(-1e9)  # no sinks
    assert (theirs(module, hidden, KINDS[kind]) - expected).abs().max() > 0.05
