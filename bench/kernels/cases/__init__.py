"""What is measured: one file per kernel or family of kernels, each with ``cases()``."""
