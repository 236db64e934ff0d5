"""Types of command-line flags that the engine, transport and kernel benchmarks share."""

import argparse


def count(text: str) -> int:
    """Reads a flag's value: an integer of at least 1. Raises ArgumentTypeError or ValueError."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} must be at least 1")
    return value
