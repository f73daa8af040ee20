"""Imports objects by name on first use, and names the packages that optional parts need."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.metadata import EntryPoint


def load(reference: str) -> Any:
    """Return the object that `package.module` or `package.module:name` refers to.

    The caller must know its type.
    """
    module, _, name = reference.partition(":")
    loaded = import_module(module)
    return getattr(loaded, name) if name else loaded


def load_entry_points(group: str) -> list[tuple[str, Any]]:
    """Return the names and the objects of the entry points of a group, weightctl's own first.

    The caller must check their types. Raises `ConversionError` if one cannot be imported.
    """
    from importlib.metadata import entry_points  # it takes 20 ms

    loaded: list[tuple[str, Any]] = []
    for each in sorted(entry_points(group=group), key=_order_of):
        try:
            loaded.append((each.name, each.load()))
        except (ImportError, AttributeError) as error:
            raise ConversionError(
                f"the entry point `{each.name}` of the group {group} cannot be imported: {error}",
                hint=f"install its package again, or remove it: it refers to {each.value}",
            ) from error
    return loaded


def _order_of(point: EntryPoint) -> tuple[bool, str]:
    return not point.value.startswith("weightctl."), point.name


def name_install(extra: str) -> str:
    """Return the command that installs the packages of an extra, in backticks.

    For example, it is "pip install 'boto3>=1.40' 'obstore>=0.12'" for the extra s3.
    """
    from importlib.metadata import PackageNotFoundError, requires  # it takes 20 ms

    try:
        lines = requires("weightctl") or []
    except PackageNotFoundError:  # weightctl runs from its source directory
        lines = []
    marker = f'extra=="{extra}"'
    parts = [line.partition(";") for line in lines]
    packages = [f"'{name.strip()}'" for name, _, found in parts if found.replace(" ", "") == marker]
    wanted = " ".join(packages) or f"'weightctl[{extra}]'"
    return f"`pip install {wanted}`"


def make_callable(package: str, name: str) -> None:
    """Let a package be called as its function `name`: `weightctl.verify(...)`."""

    class CallablePackage(ModuleType):
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            return getattr(self, name)(*arguments, **options)

    sys.modules[package].__class__ = CallablePackage


def load_on_use(package: str, references: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names are loaded on first use."""

    def find(name: str) -> Any:
        if name not in references:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load(references[name])

    return find
