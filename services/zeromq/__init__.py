"""Code that both ends of the ZeroMQ edge, engine and worker, share."""
