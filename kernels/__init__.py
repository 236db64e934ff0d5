"""The muscles: compiled kernels for the CPU (cpu/), Triton kernels for the GPU (gpu/), and for each a plain torch twin
in reference.py, stack.py or sampling.py that says what it computes.

Knows tensors and nothing of requests, plans or models. `ops` picks the implementation by the tensors' device.
"""
