"""Globals of Python and NumPy in pickles, and the records for calls of them.

Source: the `__reduce__` methods of these classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from weightctl.formats.pickles.records import Blob, Global, Pairs, PickledCall
from weightctl.formats.pytorch.records import Array, Encoded, Items, NumpyScalar, NumPyType
from weightctl.text.untyped import is_list, is_tuple
from weightctl.weights.info import Leaf

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NUMPY", "PYTHON", "is_name"]

_LONGEST_NAME = 256
_LONGEST_PATH = 512
# Whose dtypes are called by their names, and not by a letter.
_NAMED_DTYPES = "ml_dtypes"


def is_name(value: Any) -> TypeGuard[str]:
    """Whether a value is a text that is short enough for a name."""
    return type(value) is str and len(value) <= _LONGEST_NAME


def _unknown(name: str, *arguments: Any) -> PickledCall:
    """Return the record of a call with what it is not usually called with."""
    return PickledCall(Global("builtins", name), arguments)


def _mapping(*arguments: Any) -> Pairs | Items:
    return Items(arguments[0]) if arguments else Pairs()


def _default_mapping(*_factory: Any) -> Pairs:
    return Pairs()


def _elements(name: str) -> Callable[..., PickledCall]:
    def make(elements: Any = (), *_: Any) -> PickledCall:
        # Not copied: a pickle may make many sets of one list.
        if is_list(elements):
            made = _unknown(name)
            made.elements = elements
            return made
        return _unknown(name, elements)

    return make


def _bytes(text: Any = "", _encoding: Any = None, *_: Any) -> Encoded | Blob | PickledCall:
    if type(text) is str:
        return Encoded(text)
    return text if type(text) in {Blob, Encoded} else _unknown("bytes", text)


def _complex(real: Any = 0.0, imaginary: Any = 0.0) -> complex | PickledCall:
    if {type(real), type(imaginary)} <= {int, float}:
        return complex(real, imaginary)
    return _unknown("complex", real, imaginary)


def _path(kind: str) -> Callable[..., Any]:
    def make(*segments: Any) -> Any:
        # A pickle may call this often with what it keeps once.
        if not all(map(is_name, segments)):
            return PickledCall(Global("pathlib", kind), segments)
        if sum(map(len, segments)) > _LONGEST_PATH:
            return Leaf(f"pathlib.{kind}", "too long")
        import pathlib  # pure paths: nothing looks at a disk

        is_windows = "Windows" in kind
        pure = pathlib.PureWindowsPath if is_windows else pathlib.PurePosixPath
        return str(pure(*segments))

    return make


def _reconstruct(kind: Any, _base: Any = None, content: Any = None, *_: Any) -> PickledCall:
    """Stand for an object as protocols 0 and 1 have it, which may also be a dict, list or tuple."""
    made = PickledCall(kind, content if is_tuple(content) else ())
    if is_list(content):
        made.elements = content
    elif type(content) is Pairs:
        made.pairs = content.pairs
    elif not is_tuple(content) and content is not None:
        made.arguments = (content,)
    return made


# NumPy.


def _dtype(code: Any = None, *_: Any) -> NumPyType:
    if isinstance(code, Global) and code.module == _NAMED_DTYPES:
        return NumPyType(code.name)
    return NumPyType(code if is_name(code) else "class")


def _array(*_: Any) -> Array:
    return Array()


def _array_from_buffer(content: Any, dtype: Any, shape: Any, order: Any = "C", *_: Any) -> Array:
    return Array(dtype, shape, content, is_fortran=order == "F")


def _scalar(dtype: Any = None, content: Any = None, *_: Any) -> NumpyScalar:
    return NumpyScalar(dtype, content)


_ARRAY_PARTS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("multiarray._reconstruct", _array),
    ("multiarray.scalar", _scalar),
    ("numeric._frombuffer", _array_from_buffer),
)
NUMPY: dict[str, Callable[..., Any] | None] = {
    **{f"numpy{core}.{name}": make for core in (".core", "._core") for name, make in _ARRAY_PARTS},
    "numpy.dtype": _dtype,
    "numpy.ndarray": None,
}

PYTHON: dict[str, Callable[..., Any] | None] = {
    "collections.OrderedDict": _mapping,
    "collections.Counter": _mapping,
    "collections.defaultdict": _default_mapping,
    "builtins.dict": _mapping,
    "builtins.set": _elements("set"),
    "builtins.frozenset": _elements("frozenset"),
    "builtins.bytearray": _bytes,
    "builtins.bytes": _bytes,
    "builtins.complex": _complex,
    "builtins.object": None,
    **{f"builtins.{name}": None for name in ("list", "tuple", "int", "float", "str", "bool")},
    "_codecs.encode": _bytes,
    "copyreg._reconstructor": _reconstruct,
    "argparse.Namespace": None,
    **{f"{module}.{kind}": _path(kind) for module in ("pathlib", "pathlib._local") for kind in (
        "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path",
    )},
    **{f"datetime.{name}": None for name in ("datetime", "date", "timedelta")},
}  # fmt: skip
