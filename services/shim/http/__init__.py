"""The HTTP/1.1 server: connections, their limits and deadlines, TLS. Knows ASGI, and nothing of the API."""
