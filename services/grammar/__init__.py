"""Grammars that answers follow: their text, their limits, and the matcher that allows tokens one by one.

The tokenizer checks a grammar before the request runs, the worker enforces it; both with the same limits.
"""
