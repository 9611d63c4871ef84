"""Tracing: names, set-up, the trace file and the timeline that is drawn from it."""
