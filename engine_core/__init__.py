"""The scheduler and all it needs: requests, KV blocks, prefix cache, step plans. Imports no torch, sockets or clock."""
