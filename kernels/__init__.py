"""Kernels: compiled C++ for the CPU (cpu/), Triton for the GPU (gpu/). ops.py picks one of them for a device.

Each kernel has a twin: a reference implementation in plain torch (reference.py, stack.py, sampling.py) that defines its
result. This package knows tensors; it does not know requests, plans or models.

Batch invariance
----------------
A row is a token's hidden state, a token's attention output, or one request's logits. Batch invariance: the bits of a
row's result depend on that row (in attention: on its own keys and values) alone. They do not depend on the other rows,
their number, chunked prefill, prefix cache hits, preemption, padding for CUDA graphs, or the number of threads.

Floating-point addition is not associative, so a result's bits depend on the order of its sums. cuBLAS and oneDNN choose
tile shapes and split-K by the number of rows: the same row gets other bits in another batch, and a sampled token can
differ. Here the order of every sum is fixed by what the batch cannot change: the weight's shape, the dtype, the head
size, the instruction set, a key's absolute position. Rows and columns may be divided among tiles and threads in any
way, because no sum crosses a row or a column; K and the keys are divided at fixed places only.

| operation | CPU | GPU | order of sums |
|---|---|---|---|
| matrix product | cpu/native/linear.h, linear_amx.h | gpu/linear.py | along K, divided as the weight's shape says |
| attention | cpu/native/attention_run.h | gpu/attention.py | ascending; key tiles and segments at absolute positions |
| norm, rope, activation | cpu/native/, by name | gpu/, by name | one thread or program per row |
| sampling | cpu/native/sample.h | gpu/{sample,cut_off}.py | CPU: one task per row; GPU: integer sums, any order |

Random numbers are a function of (seed, choice, token index, vocabulary id): philox.py. `Ops.batch_invariant` says
whether an implementation keeps the promise; TorchOps and TorchMatrix (`--no-batch-invariant`) do not. Tests:
tests/kernels compares bits for many batches, tests/worker/test_invariance.py whole answers. docs/decisions/0006.
"""
