"""Tables of names whose objects are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def load(reference: str) -> Any:
    """Return the object that `package.module` or `package.module:name` refers to.

    The caller must know its type.
    """
    module, _, name = reference.partition(":")
    loaded = import_module(module)
    return getattr(loaded, name) if name else loaded


def load_on_use(package: str, references: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names are loaded on first use."""

    def find(name: str) -> Any:
        if name not in references:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load(references[name])

    return find
