"""Compiled kernels for the CPU (kernels/cpu/native, C++). They are built when the package is installed; at run time no
compiler is needed. There is one module per instruction set. Each is batch-invariant (kernels/__init__.py); the results
of two instruction sets may differ in the last bits.
"""
