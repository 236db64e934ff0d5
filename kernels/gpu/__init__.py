"""Triton kernels for GPUs. Twins: kernels/reference.py and kernels/sampling.py."""
