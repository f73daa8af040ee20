"""Import and export of arrays through DLPack, for all types that DLPack supports.

NumPy does not support the types of `ml_dtypes`, so capsules are read and changed here. The source
of the structures and type codes is dlpack.h 1.1.
"""

from __future__ import annotations

import ctypes
import weakref
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from weightctl.dtype import DType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

CPU = (1, 0)
_CODES = {
    DType.bool: 6, DType.complex64: 5, DType.complex128: 5, DType.bfloat16: 4,
    DType.float8_e4m3fn: 10, DType.float8_e4m3fnuz: 11, DType.float8_e5m2: 12,
    DType.float8_e5m2fnuz: 13, DType.float8_e8m0fnu: 14,
}  # fmt: skip
_KINDS = {"i": 0, "u": 1, "f": 2}


@runtime_checkable
class DLPackArray(Protocol):
    """Any object that supports DLPack."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_NAME, _USED, _VERSIONED = b"dltensor", b"used_dltensor", b"dltensor_versioned"
_python = ctypes.pythonapi
_is_valid = _python.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_pointer = _python.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_rename = _python.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def export(
    memory: memoryview, dtype: DType, shape: Sequence[int], options: Mapping[str, Any]
) -> Any:
    """Return a DLPack capsule for contiguous memory, without a copy if it is writable.

    `options` are those of `__dlpack__`. The memory is kept alive while a consumer uses it. Raises
    `BufferError` for types without a DLPack code (float4 packs two values in a byte).
    """
    import numpy as np  # not loaded by `ls`

    code, size = _code(dtype), dtype.encoding.size
    if code is None:
        raise BufferError(f"DLPack does not support {dtype.value}")
    # NumPy creates, keeps and frees a capsule of integers; its type is changed afterwards.
    integers = np.frombuffer(memory, "c16" if size == 16 else f"u{size}").reshape(tuple(shape))
    if not integers.flags.writeable and options.get("copy") is not False:
        integers = integers.copy()
    capsule = integers.__dlpack__(**options)
    if _is_valid(capsule, _VERSIONED):
        tensor = _Versioned.from_address(_pointer(capsule, _VERSIONED)).tensor
    else:
        tensor = _Managed.from_address(_pointer(capsule, _NAME)).tensor
    tensor.dtype = _Type(code, size * 8, 1)
    return capsule


def on_cpu(array: DLPackArray) -> DLPackArray:
    """Return an array without its gradient and on the CPU; arrays on other devices are copied.

    Tensors are detached and copied with their own methods: torch's, or those of the same name in
    other libraries.
    """
    given: Any = array
    if getattr(given, "requires_grad", False):
        given = given.detach()
    if given.__dlpack_device__()[0] != CPU[0]:
        move = getattr(given, "cpu", None) or getattr(given, "to_host", None)
        if move is None:
            raise BufferError("the array is on another device; copy it to the CPU first")
        given = move()
    # torch only records a conjugation or negation until the values are needed.
    for note in ("resolve_conj", "resolve_neg"):
        given = getattr(given, note, lambda given=given: given)()
    return cast("DLPackArray", given)


def take(array: DLPackArray) -> NDArray[Any]:
    """Return another library's array as a NumPy array, without a copy.

    Raises `BufferError` if the array is not in CPU memory, or if its type is not a `DType`.
    """
    import numpy as np  # not loaded by `ls`

    from weightctl.codecs.scalar import numpy_dtype

    device, _ = array.__dlpack_device__()
    if device != CPU[0]:
        raise BufferError("the array is on another device; copy it to the CPU first")
    capsule = array.__dlpack__()
    address = _pointer(capsule, _NAME)
    tensor = _Managed.from_address(address).tensor
    kind = numpy_dtype(_dtype(tensor.dtype))
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = _strides(tensor, shape, kind.itemsize)
    spans = [] if 0 in shape else [s * (n - 1) for s, n in zip(strides, shape, strict=True)]
    # Strides can be negative: the first element is not always the first in memory.
    before = -sum(min(span, 0) for span in spans)
    nbytes = 0 if 0 in shape else before + sum(max(span, 0) for span in spans) + kind.itemsize
    start = (tensor.data or 0) + tensor.byte_offset - before
    _rename(capsule, _USED)
    memory = (ctypes.c_uint8 * nbytes).from_address(start)
    # At exit, another library may still read the memory.
    weakref.finalize(memory, _give_back, address).atexit = False
    # NumPy accepts any buffer; its type stubs do not.
    return np.ndarray(shape, kind, cast("Any", memory), before, strides)


def _strides(tensor: _Tensor, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    if tensor.strides:
        return tuple(tensor.strides[axis] * itemsize for axis in range(len(shape)))
    return tuple(itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _give_back(address: int) -> None:
    deleter = _Managed.from_address(address).deleter
    if deleter:
        _Deleter(deleter)(address)


def _dtype(kind: _Type) -> DType:
    for dtype in DType:
        if kind.bits == dtype.encoding.size * 8 and kind.lanes == 1 and kind.code == _code(dtype):
            return dtype
    raise BufferError(f"no DType matches DLPack type {kind.code} with {kind.bits} bits")


def _code(dtype: DType) -> int | None:
    if dtype is DType.float4_e2m1fn:
        return None
    return _CODES.get(dtype, _KINDS.get(dtype.value[0]))
