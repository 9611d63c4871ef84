"""Measurements: every number in the documents comes from a command in this package."""
