"""Compiled kernels for the CPU (kernels/cpu/native, C++), built when the package is installed; no compiler is needed at
run time. One module for each instruction set; each computes every row by one fixed order of operations, so that a row's
bits depend on nothing but the row. Different instruction sets may differ in last bits.
"""
