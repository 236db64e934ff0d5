"""The Triton kernels. Twins: kernels/reference.py and kernels/sampling.py."""
