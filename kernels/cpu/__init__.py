"""Kernels for x86-64 processors: LLVM's code, written here and compiled when a worker starts.

A row's result never depends on its company: every routine computes a row by itself, in an order
that only the row's own numbers and places decide.
"""

from __future__ import annotations

from kernels.cpu.machine import available

__all__ = ["available"]
