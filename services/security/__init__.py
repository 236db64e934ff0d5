"""Authentication between processes: one secret per deployment over TCP, directory permissions for Unix sockets.

Knows no role. docs/security.md describes the attacks and the protection, docs/decisions/0027 the reasons.
"""
