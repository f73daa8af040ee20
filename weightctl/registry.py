"""A table of names whose objects are imported when they are first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["load"]


def load(reference: str) -> Any:
    """Return the object that `package.module` or `package.module:name` refers to.

    What kind of object a table's references lead to is said where the table stands.
    """
    module, _, name = reference.partition(":")
    loaded = import_module(module)
    return getattr(loaded, name) if name else loaded
