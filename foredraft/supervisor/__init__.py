"""Start, watch, restart and stop the three processes of one machine."""
