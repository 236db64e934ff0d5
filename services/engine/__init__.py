"""The engine process: token ids in, step plans to the worker, token events out. Knows no text and no tensors."""
