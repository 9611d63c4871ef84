"""Runs a draft model: its rows may round in any way, so nothing is padded for equal bits."""
