"""The command line: one file per command, each with ``add_parser`` and a function that runs it.

Commands import what they run when they run it, so that ``--help`` and the client commands need
neither torch nor a second.
"""
