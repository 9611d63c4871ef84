"""Texts from elsewhere, as a terminal may show them.

A terminal obeys control characters: a name in a trace file, an error of a server or an answer of
a model could rename its window, move its cursor or hide what stands before.
"""

from __future__ import annotations

_KEPT = "\n\t"
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in _KEPT
}


def one_line(text: str) -> str:
    """Whatever is not a printable character, the end of a line included, as its escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def without_controls(text: str) -> str:
    """Lines, tabs and all that scripts of this world need stay; control characters are escaped."""
    return text.translate(_CONTROLS)
