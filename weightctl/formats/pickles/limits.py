"""The errors of a scan that stops though a program that loads the pickle would go on."""

from __future__ import annotations

__all__ = ["LimitError"]


class LimitError(Exception):
    """A limit on what is read was reached; the message says which."""
