"""The records of a PyTorch pickle: storages, tensors over them, and NumPy's arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.formats.pickles.records import Built
from weightctl.text.untyped import is_tuple

if TYPE_CHECKING:
    from weightctl.dtype import Encoding

__all__ = [
    "Array",
    "Device",
    "Enclosed",
    "Encoded",
    "Items",
    "NumPyType",
    "NumpyScalar",
    "Size",
    "Storage",
    "TensorRecord",
]


class Storage(NamedTuple):
    """A run of `length` numbers that the file keeps under a key; `start` skips the first of them.

    `encoding` is None if its numbers are only bytes, until a tensor says what they are.
    """

    encoding: Encoding | None
    key: str
    length: int
    start: int = 0


class Enclosed(NamedTuple):
    """A storage that stands in the pickle as bytes, in a stream of its own."""

    content: Any


class TensorRecord(NamedTuple):
    """A view of a storage: offset and strides are in elements.

    `encoding` is what the elements are. `quantizer` is how they become numbers, where they are
    integers with a scale.
    """

    storage: Any
    offset: Any
    shape: Any
    strides: Any
    encoding: Encoding | None
    quantizer: Any = None


class NumPyType(Built):
    """A NumPy dtype: its code, as `f4`, and its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code = code.lstrip("<>|=")
        self.order = code[:1] if code[:1] in "<>" else "<"

    def build(self, state: Any) -> None:
        """Take `(version, order, subtype, names, fields, ...)`."""
        if not is_tuple(state) or len(state) < 5:
            self.code = "unknown"
            return
        _, order, subtype, names, fields = state[:5]
        if order in {"<", ">"}:
            self.order = order
        if subtype is not None or names is not None or fields is not None:
            self.code = "structured"


class Array(Built):
    """A NumPy array: the bytes that stand in the pickle, or the objects it holds."""

    __slots__ = ("content", "dtype", "is_fortran", "shape")

    def __init__(
        self,
        dtype: Any = None,
        shape: Any = (),
        content: Any = None,
        *,
        is_fortran: bool = False,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.content = content
        self.is_fortran = is_fortran

    def build(self, state: Any) -> None:
        """Take `(version, shape, dtype, is_fortran, content)`; the oldest have no version.

        What subclasses add stands after that; what they have instead is not kept.
        """
        if not is_tuple(state) or len(state) < 4:
            return
        first = 1 if len(state) > 4 else 0
        self.shape, self.dtype, is_fortran, self.content = state[first : first + 4]
        self.is_fortran = bool(is_fortran)


class NumpyScalar(NamedTuple):
    """One of NumPy's numbers: its type, and its bytes."""

    dtype: Any
    content: Any


class Encoded(NamedTuple):
    """Bytes that stand in the pickle as a text, a byte a letter."""

    text: str


class Items(NamedTuple):
    """A mapping that was made from a list of its keys and values."""

    pairs: Any


class Size(NamedTuple):
    """A `torch.Size`."""

    sizes: Any


class Device(NamedTuple):
    """A `torch.device`."""

    name: str
