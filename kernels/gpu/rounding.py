"""Rounding of counts on the host. triton.cdiv and triton.next_power_of_2 do the same, but are functions of the kernel
language: each call unwraps its arguments, which took 12% of the host's time of a step (docs/log.md, 2026-11-27)."""


def cdiv(count: int, size: int) -> int:
    """Returns the number of groups of `size` that hold `count`."""
    return -(-count // size)


def next_power_of_2(count: int) -> int:
    """Returns the smallest power of 2 that is at least `count`, which is positive."""
    return 1 << (count - 1).bit_length()
