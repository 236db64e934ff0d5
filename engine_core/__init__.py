"""The brain: requests, blocks, prefix cache, scheduler, step plan. Pure Python: no torch, no sockets, no clock."""
