"""Who may ask the shim: API keys, the hosts and origins of requests, the type of their bodies."""
