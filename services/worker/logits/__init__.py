"""What changes logits before a token is drawn: one processor per file, in the order of pipeline.py."""
