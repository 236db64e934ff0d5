"""`tandem bench serve | latency | throughput | sweep`, and the comparison of servers.

Measures any OpenAI-compatible server over HTTP. Knows a server only by its URL or its command line.
"""
