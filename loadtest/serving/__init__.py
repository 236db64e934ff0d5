"""`tandem bench serve | latency | throughput | sweep`, and the comparison of servers: measured over HTTP, from outside.

Knows a server by its URL or its command line, so that it measures any OpenAI-compatible one.
"""
