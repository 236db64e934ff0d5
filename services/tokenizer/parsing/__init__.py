"""Finds reasoning and tool calls in an answer: one engine, and a table per format."""
