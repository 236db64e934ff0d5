"""The form of an answer's content, as a part of its grammar: JSON, a regular expression, choices, a grammar, tags.

Pure functions of what the client wrote. Each form has a module; limits and messages are in them.
"""
