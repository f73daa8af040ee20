"""Contiguous elements on a device."""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.errors import ArgumentTypeError, EncodingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.device import DeviceRef
    from weightctl.weights.dlpack import DLPackArray

_Leaf: TypeAlias = "Callable[[Any], Any]"

# Arguments that NumPy writes into: a temporary array would receive the result instead.
_WRITING = {"copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"}
# Functions that need only the shape.
_OUTLINES = {"ndim", "shape", "size"}


class ArrayOperators:
    """Operators and NumPy functions, applied to an array of the elements.

    Block-quantized data is refused here, unlike in `np.asarray`, because its bytes would be used as
    values.
    """

    __slots__ = ()

    def _buffer(self) -> Buffer:
        """Return the elements; raises an error if arithmetic with them is not possible."""
        raise NotImplementedError

    def _sizes(self) -> tuple[int, ...]:
        """Return the shape of the array that `np.asarray` returns, without reading elements."""
        raise NotImplementedError

    def _array(self) -> NDArray[Any]:
        return self._buffer().to_numpy()

    def _with(self, other: Any) -> tuple[Any, Any]:
        """Return the elements and another operand, as types that can be combined."""
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(other, torch.Tensor):
            # torch does not combine tensors with arrays, and has types that NumPy does not have.
            return torch.from_dlpack(self._buffer()), other
        return self._array(), _to_array(other)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        outputs = options.get("out", ())
        if _is_ours((*outputs, inputs[0]) if method == "at" else outputs):
            raise _unwritable(f"np.{ufunc.__name__}")
        given = {word: _to_array(value) for word, value in options.items()}
        return getattr(ufunc, method)(*map(_to_array, inputs), **given)

    def __array_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        name = function.__name__
        written: Any = args[0] if name in _WRITING and args else kwargs.get("out")
        if _is_ours([*written] if type(written) is tuple else [written]):
            raise _unwritable(f"np.{name}")
        leaf = _outline if name in _OUTLINES else _to_array
        given = {word: _each(value, leaf) for word, value in kwargs.items()}
        return function(*_each(tuple(args), leaf), **given)

    def __neg__(self) -> Any:
        return -self._array()

    def __pos__(self) -> Any:
        return +self._array()

    def __invert__(self) -> Any:
        return ~self._array()

    def __abs__(self) -> Any:
        return abs(self._array())

    def __lt__(self, other: Any) -> Any:
        own, given = self._with(other)
        return own < given

    def __le__(self, other: Any) -> Any:
        own, given = self._with(other)
        return own <= given

    def __gt__(self, other: Any) -> Any:
        own, given = self._with(other)
        return own > given

    def __ge__(self, other: Any) -> Any:
        own, given = self._with(other)
        return own >= given

    def __add__(self, other: Any) -> Any:
        own, given = self._with(other)
        return own + given

    def __radd__(self, other: Any) -> Any:
        own, given = self._with(other)
        return given + own

    def __sub__(self, other: Any) -> Any:
        own, given = self._with(other)
        return own - given

    def __rsub__(self, other: Any) -> Any:
        own, given = self._with(other)
        return given - own

    def __mul__(self, other: Any) -> Any:
        own, given = self._with(other)
        return own * given

    def __rmul__(self, other: Any) -> Any:
        own, given = self._with(other)
        return given * own

    def __truediv__(self, other: Any) -> Any:
        own, given = self._with(other)
        return own / given

    def __rtruediv__(self, other: Any) -> Any:
        own, given = self._with(other)
        return given / own

    def __floordiv__(self, other: Any) -> Any:
        own, given = self._with(other)
        return own // given

    def __rfloordiv__(self, other: Any) -> Any:
        own, given = self._with(other)
        return given // own

    def __mod__(self, other: Any) -> Any:
        own, given = self._with(other)
        return own % given

    def __rmod__(self, other: Any) -> Any:
        own, given = self._with(other)
        return given % own

    def __pow__(self, other: Any) -> Any:
        own, given = self._with(other)
        return own**given

    def __rpow__(self, other: Any) -> Any:
        own, given = self._with(other)
        return given**own

    def __matmul__(self, other: Any) -> Any:
        own, given = self._with(other)
        return own @ given

    def __rmatmul__(self, other: Any) -> Any:
        own, given = self._with(other)
        return given @ own


def _to_array(given: Any) -> Any:
    """Return the array of an object of this package; other objects unchanged."""
    if isinstance(given, ArrayOperators):
        return given._array()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of this module
    return given


def _outline(given: Any) -> Any:
    """Return an array with the shape of an object of this package, without its elements."""
    if isinstance(given, ArrayOperators):
        import numpy as np

        return np.broadcast_to(np.uint8(0), given._sizes())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of this module
    return given


def _each(given: Any, leaf: _Leaf) -> Any:
    """Return an argument of a NumPy function, with `leaf` applied to each item of its lists."""
    if type(given) in {list, tuple}:
        return type(given)(_each(value, leaf) for value in given)
    return leaf(given)


def _is_ours(given: Sequence[Any]) -> bool:
    return any(isinstance(value, ArrayOperators) for value in given)


def _unwritable(function: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{function} cannot write into a weight: its data is read-only",
        hint="use `data.to_numpy()` instead, an array of the same memory, if it is writable",
    )


def _delegate(name: str) -> Callable[..., Any]:
    def method(self: ArrayMethods, *args: Any, **options: Any) -> Any:
        return getattr(_to_array(self), name)(*map(_to_array, args), **options)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"As `numpy.ndarray.{name}`, on the elements."
    return method


class ArrayMethods(ArrayOperators):
    """`ArrayOperators` with indexing, length, iteration, equality and the methods of arrays.

    Objects are hashed by identity, like torch tensors.
    """

    __slots__ = ()

    all = _delegate("all")
    any = _delegate("any")
    argmax = _delegate("argmax")
    argmin = _delegate("argmin")
    clip = _delegate("clip")
    copy = _delegate("copy")
    flatten = _delegate("flatten")
    item = _delegate("item")
    max = _delegate("max")
    mean = _delegate("mean")
    min = _delegate("min")
    prod = _delegate("prod")
    ravel = _delegate("ravel")
    reshape = _delegate("reshape")
    round = _delegate("round")
    squeeze = _delegate("squeeze")
    std = _delegate("std")
    sum = _delegate("sum")
    tolist = _delegate("tolist")
    transpose = _delegate("transpose")
    var = _delegate("var")

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._sizes())

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self._sizes())

    @property
    def T(self) -> NDArray[Any]:  # noqa: N802  # as NumPy calls it
        """The elements with their axes in reverse order."""
        return self._array().T

    def __len__(self) -> int:
        return len(self._array())

    def __getitem__(self, index: Any) -> Any:
        return self._array()[_each(index, _to_array)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._array())

    def __bool__(self) -> bool:
        return bool(self._array())

    def __int__(self) -> int:
        return int(self._array().item())

    def __float__(self) -> float:
        return float(self._array().item())

    def __complex__(self) -> complex:
        return complex(self._array().item())

    def __eq__(self, other: object) -> Any:
        own, given = self._with(other)
        return own == given

    def __ne__(self, other: object) -> Any:
        own, given = self._with(other)
        return own != given

    __hash__ = object.__hash__

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = "" if name.startswith("_") else _ELSEWHERE
            message = f"a {type(self).__name__} has no attribute `{name}`{hint}"
            raise AttributeError(message, name=name, obj=self)


_ELSEWHERE = ": use `.to_numpy()` for a NumPy array, or `torch.from_dlpack` for a tensor"


class Buffer(ArrayMethods):
    """Contiguous bytes in native order, with a dtype and a shape.

    A buffer is an array: operators, indices, `len` and NumPy functions use its elements. It prints
    as `Buffer([5, 10])`. Raises `EncodingError` if the number of bytes does not match the shape.
    """

    __slots__ = ("_device", "_memory", "dtype", "shape")

    def __init__(
        self, memory: memoryview, dtype: DType, shape: Sequence[int], device: DeviceRef = CPU
    ) -> None:
        expected = dtype.encoding.nbytes(tuple(shape))
        if memory.nbytes != expected:
            raise EncodingError(
                f"an array of shape {list(shape)} and dtype {dtype.value} needs {expected} "
                f"bytes, but {memory.nbytes} were given"
            )
        self._memory = memory.cast("B") if memory.format != "B" or memory.ndim != 1 else memory
        self._device = device
        self.dtype = dtype
        self.shape = tuple(shape)

    @classmethod
    def from_numpy(cls, array: NDArray[Any]) -> Buffer:
        """Wrap a NumPy array: without a copy if it is contiguous, writable and in native order.

        Raises `ArgumentTypeError` if the value is not a NumPy array, and `EncodingError` for masked
        arrays and for arrays whose type is not a `DType`.
        """
        import numpy as np  # not loaded by `ls`

        from weightctl.codecs.scalar import pack

        if isinstance(array, np.ma.MaskedArray):
            raise EncodingError(
                "the mask of a masked array would be lost",
                hint="use `filled()` to get a plain array",
            )
        # A caller's types are not checked.
        unchecked = cast("object", array)
        if not isinstance(unchecked, np.ndarray | np.generic):
            is_other = hasattr(unchecked, "__dlpack__")
            raise ArgumentTypeError(
                f"a NumPy array is expected, not {type(unchecked).__name__}",
                hint="use `from_dlpack` for arrays of other libraries"
                if is_other
                else "use `np.asarray` to make an array of a list or a number",
            )
        if array.dtype.name not in DType.__members__:
            raise EncodingError(f"no DType matches arrays of {array.dtype}")
        native = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
        dtype = DType(native.dtype.name)
        return cls(pack(native.reshape(-1)).data, dtype, array.shape)

    @classmethod
    def from_dlpack(cls, array: DLPackArray) -> Buffer:
        """Wrap any array that supports DLPack: without a copy if it is contiguous and on the CPU.

        Gradients of torch tensors are dropped, and arrays on other devices are copied to the CPU.
        Raises `EncodingError` if the value is not an array, and `BufferError` if the array cannot
        be used.
        """
        if isinstance(array, Buffer):
            return array
        import numpy as np

        from weightctl.weights.dlpack import on_cpu, take

        # NumPy does not export read-only arrays and the types of `ml_dtypes` through DLPack.
        if isinstance(array, np.ndarray | np.generic):
            return cls.from_numpy(np.asanyarray(cast("Any", array)))
        given: Any = array
        if not hasattr(given, "__dlpack__"):
            raise EncodingError(
                f"{type(given).__name__} is not an array",
                hint="use a NumPy array, a torch tensor or another object that supports DLPack",
            )
        return cls.from_numpy(take(on_cpu(array)))

    @property
    def device(self) -> DeviceRef:
        """The device of the bytes, with the index that a graph uses for it."""
        return self._device

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self._memory.nbytes

    @property
    def address(self) -> int:
        """The memory address of the first byte; no byte is read."""
        import numpy as np

        return np.frombuffer(self._memory, np.uint8).ctypes.data

    @property
    def memory(self) -> memoryview:
        """The bytes themselves."""
        return self._memory

    def to_numpy(self) -> NDArray[Any]:
        """Return the elements as an array: a view, except for float4, which NumPy cannot pack."""
        import numpy as np

        from weightctl.codecs.scalar import unpack

        return unpack(np.frombuffer(self.memory, np.uint8), self.dtype).reshape(self.shape)

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        import numpy as np

        return np.array(self.to_numpy(), dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        from weightctl.weights.dlpack import export

        return export(self.memory, self.dtype, self.shape, options)

    def __dlpack_device__(self) -> tuple[int, int]:
        from weightctl.weights import dlpack

        return dlpack.CPU

    def __repr__(self) -> str:
        return f"Buffer({list(self.shape)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (bytes(self._memory), self.dtype, self.shape))

    def _buffer(self) -> Buffer:
        return self

    def _sizes(self) -> tuple[int, ...]:
        return self.shape


def _restore(raw: bytes, dtype: DType, shape: tuple[int, ...]) -> Buffer:
    return Buffer(memoryview(bytearray(raw)), dtype, shape)
