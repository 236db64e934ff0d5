"""The HTTP APIs that generate text: one package each, over one stream of updates (services/shim/updates.py)."""
