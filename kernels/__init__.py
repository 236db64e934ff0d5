"""The muscles: Triton kernels for the GPU, and for each a plain torch twin in reference.py that says what it computes.

Knows tensors and nothing of requests, plans or models. `ops` picks the implementation by the tensors' device.
"""
