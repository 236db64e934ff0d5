"""Client programs of others, unmodified and each in an environment of its own, against a running server."""
