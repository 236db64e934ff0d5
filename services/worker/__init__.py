"""The worker process, one per accelerator (GPU or CPU): runs step plans, returns sampled tokens. No text, clients or
scheduling.
"""
