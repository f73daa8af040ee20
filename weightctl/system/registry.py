"""Imports objects by name on first use, and names the packages that optional parts need."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from weightctl.errors import ConversionError
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from importlib.metadata import EntryPoint

Line = TypeVar("Line", bound="tuple[Any, ...]")


class AddedPart(NamedTuple):
    """What an entry point of an installed package refers to.

    `place` names the entry point and its package in messages, and `remedy` is a hint.
    """

    name: str
    value: Any
    place: str
    remedy: str


# What entry points and the tables of packages refer to, by reference.
_ADDED: dict[str, AddedPart] = {}


def load(reference: str, kind: str = "") -> Any:
    """Return the object that `package.module` or `package.module:name` refers to.

    The caller must know its type. If the reference is that of an installed package, `kind` refers
    to the class that the object must have. Raises `ConversionError`, which names the package, if
    it has another, or cannot be imported.
    """
    added = _ADDED.get(reference)
    if added is None:
        return _load(reference)
    try:
        found = _load(reference)
    except Exception as error:  # importing runs the code of a package
        raise _cannot_import(added.place, reference, error, added.remedy) from error
    if kind and not isinstance(found, _load(kind)):
        what = f"`{reference}` is not a {kind.replace(':', '.')}"
        raise ConversionError(f"{added.place}: {what}", hint=added.remedy)
    return found


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    loaded = import_module(module)
    return getattr(loaded, name) if name else loaded


def _cannot_import(place: str, reference: str, error: Exception, remedy: str) -> ConversionError:
    why = f"{type(error).__name__}: {error}"
    return ConversionError(f"{place}: `{reference}` cannot be imported: {why}", hint=remedy)


def load_entry_points(group: str) -> list[AddedPart]:
    """Return what the entry points of a group refer to, weightctl's own first.

    The caller must check the types. Raises `ConversionError` if one cannot be imported.
    """
    from importlib.metadata import entry_points  # it takes 20 ms

    loaded: list[AddedPart] = []
    for each in sorted(entry_points(group=group), key=_order_of):
        package = f"{each.dist.name} {each.dist.version}" if each.dist else "of unknown name"
        place = f"the entry point `{each.name}` of the group {group} (package {package})"
        name = each.dist.name if each.dist else "PACKAGE"
        remedy = f"install another version of the package, or remove it: `pip uninstall {name}`"
        try:
            part = AddedPart(each.name, each.load(), place, remedy)
        except Exception as error:  # importing runs the code of the package
            raise _cannot_import(place, each.value, error, remedy) from error
        _ADDED[each.value] = part
        loaded.append(part)
    return loaded


def refuse_added(reference: str, why: str) -> ConversionError:
    """Return the error for what a package refers to in a table; `why` follows its name."""
    return ConversionError(f"{_ADDED[reference].place} {why}", hint=_ADDED[reference].remedy)


def find_culprit(error: Exception) -> ConversionError | None:
    """Return the error to show for a fault in the code of an installed package; None for others."""
    parts = {re.split(r"[.:]", reference)[0]: part for reference, part in _ADDED.items()}
    at = error.__traceback__
    while at is not None:
        name = str(at.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if name in parts and name != "weightctl":
            where = f"{at.tb_frame.f_code.co_filename}, line {at.tb_lineno}"
            text = f"{parts[name].place} failed: {where}: {type(error).__name__}: {error}"
            return ConversionError(text, hint=parts[name].remedy)
        at = at.tb_next
    return None


def _order_of(point: EntryPoint) -> tuple[bool, str, str]:
    return not point.value.startswith("weightctl."), point.name, point.value


def load_tables(group: str, line: type[Line], known: Collection[str], what: str) -> dict[str, Line]:
    """Return the lines of the tables that the entry points of a group refer to.

    Raises `ConversionError` if a table is not a dictionary of names and lines of the class, or if a
    name is known or in another table. `what` is what a line describes, for messages.
    """
    added: dict[str, Line] = {}
    for each in load_entry_points(group):
        table = each.value
        if not is_object(table) or not all(isinstance(value, line) for value in table.values()):
            form = f"a dictionary of names and of `{line.__module__}.{line.__name__}`"
            raise ConversionError(f"{each.place} is not {form}", hint=each.remedy)
        if twice := [name for name in table if name in known or name in added]:
            raise ConversionError(
                f"{each.place} adds the {what} `{twice[0]}`, which exists already", hint=each.remedy
            )
        for name, value in table.items():
            added[name] = value
            for field in value:
                references = field.values() if is_object(field) else (field,)
                _ADDED.update({text: each for text in references if isinstance(text, str)})
    return added


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
