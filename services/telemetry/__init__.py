"""Logs, metrics and traces, as every process writes them. What each role records is in its own telemetry.py."""
