"""Authentication between processes: one secret per deployment over TCP, directory permissions for Unix sockets.

Knows no role. docs/security.md says what is protected against what, docs/decisions/0027 why.
"""
