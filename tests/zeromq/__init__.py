"""Tests of the ZeroMQ edge between engine and worker."""
