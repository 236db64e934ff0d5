"""`tandem bench`: sends workloads to any OpenAI-compatible server and reports what it measured.

A client among others: it knows a server by its URL or the command line that starts it, and nothing of the processes
behind it.
"""
