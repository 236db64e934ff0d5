"""Logs, metrics and traces, as every process writes them. The metrics and spans of a role are in its own package."""
