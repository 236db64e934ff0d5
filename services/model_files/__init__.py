"""Finds the files of a model."""
