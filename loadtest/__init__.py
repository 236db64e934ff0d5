"""`tandem bench serve`: sends a workload to any OpenAI-compatible server and reports what it measured.

A client among others: it knows a server by its URL alone, and nothing of the processes behind it.
"""
