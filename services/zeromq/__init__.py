"""What both ends of the ZeroMQ edge between engine and worker share."""
