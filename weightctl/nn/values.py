"""The values of weights: how a module keeps them, and their types without reading them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from weightctl.dtype import DType
from weightctl.errors import MissingTensorError, StateDictError
from weightctl.weights.buffer import Buffer
from weightctl.weights.data import Deferred, WeightData
from weightctl.weights.dlpack import CPU, DLPackArray
from weightctl.weights.info import TensorInfo
from weightctl.weights.tree import Checkpoint, info_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.graph.graph import Weight
    from weightctl.shape import Shape

_ARRAYS = "use NumPy arrays, torch tensors, Buffers or other objects that support DLPack"

StateValue: TypeAlias = "DLPackArray | WeightData | Checkpoint"


class HeldValue(DLPackArray, Protocol):
    """The value of a weight, such as a NumPy array, a torch tensor, a `Buffer` or `WeightData`."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes; for quantized `WeightData`, the sizes of its bytes."""
        ...

    @property
    def dtype(self) -> Any:
        """The dtype, as the library of the value represents it."""
        ...


class _Kept(NamedTuple):
    """The value of a weight; `made` is the dtype and shape of zeros that were created for it."""

    value: HeldValue
    made: tuple[DType, Shape] | None


def keep(weight: Weight, value: HeldValue) -> None:
    """Store the value of a weight in the weight."""
    weight.held = _Kept(value, None)


def to_held(value: StateValue) -> HeldValue:
    """Return a value in the form that a weight keeps: the same memory, without a gradient."""
    given: Any = value
    if isinstance(value, Checkpoint):
        return value.data()
    # torch's own `state_dict()` detaches values too: NumPy and DLPack refuse a tensor with a
    # gradient.
    return cast("HeldValue", given.detach() if getattr(given, "requires_grad", False) else value)


def get_value(weight: Weight) -> HeldValue | None:
    """Return the value of a weight, None if it has none.

    Zeros that were created for another shape or dtype do not count as a value.
    """
    found = cast("_Kept | None", weight.held)  # only this module sets it
    if found is None or (found.made is not None and found.made != (weight.dtype, weight.shape)):
        return None
    return found.value


def keep_zeros(weight: Weight) -> Buffer:
    """Store zeros as the value of a weight and return them; for blocks these are zero bytes."""
    import numpy as np  # `ls` loads no numpy

    dtype, shape = weight.dtype, weight.shape
    nbytes = dtype.encoding.nbytes(shape.sizes)
    boundary = weight.align or 1
    memory = np.zeros(nbytes + boundary, np.uint8)
    start = -memory.ctypes.data % boundary
    made = Buffer(memory[start : start + nbytes].data, dtype, shape.sizes)
    weight.held = _Kept(made, (dtype, shape))
    return made


def describe(name: str, value: StateValue) -> TensorInfo:
    """Return the shape and encoding of a value without reading its data.

    Raises `StateDictError` if the value is not an array of numbers.
    """
    if isinstance(value, Checkpoint):
        try:
            return info_of(value)
        except MissingTensorError as error:
            raise StateDictError(
                f"is not in the checkpoint: {error.message}", hint=error.hint
            ) from error
    if isinstance(value, WeightData):
        if value.is_declared:
            raise StateDictError(
                "was declared without data",
                hint="open a checkpoint that has the tensor, or pass an array",
            )
        return value.info
    if isinstance(value, Buffer):
        return TensorInfo(name, value.shape, value.dtype.encoding)
    array = _as_numpy(value) if _is_here(value) else cast("Any", value)
    try:
        dtype = DType(array.dtype)
    except ValueError as error:
        raise StateDictError(f"is an array of {array.dtype}, which no DType matches") from error
    return TensorInfo(name, tuple(array.shape), dtype.encoding)


def data_of(value: StateValue) -> WeightData:
    """Return a value as data; raises `StateDictError` if the value is not an array of numbers."""
    describe("", value)  # raises if it is not an array
    return value.data() if isinstance(value, Checkpoint) else WeightData.from_dlpack(value, "")


def _is_here(value: object) -> bool:
    """Whether an array is in the memory of the host; also true if the value is not an array."""
    device: Any = getattr(value, "__dlpack_device__", None)
    if device is None:
        return True
    if getattr(value, "is_sparse", False):
        raise StateDictError(
            "is sparse, and not stored as one contiguous array",
            hint="convert it to a dense tensor with `to_dense()`",
        )
    if getattr(value, "is_meta", False):
        raise StateDictError("is on the meta device and has no data", hint="load its data first")
    try:
        return bool(device()[0] == CPU[0])
    except (BufferError, RuntimeError, ValueError) as error:
        raise StateDictError(f"cannot be read: {error}", hint=_ARRAYS) from error


def address(value: DLPackArray) -> int | None:
    """Return the memory address of a value without reading its data.

    Returns None if the value is empty, computed when it is read, or on another device.
    """
    if isinstance(value, WeightData):
        return address(value.data)
    if isinstance(value, Deferred):
        return None
    if isinstance(value, Buffer):
        return value.address if value.nbytes else None
    if not _is_here(value):
        return None
    array = _as_numpy(value)
    return array.ctypes.data if array.size else None


def _as_numpy(value: DLPackArray) -> NDArray[Any]:
    import numpy as np

    from weightctl.weights.dlpack import on_cpu, take

    given: Any = value
    if isinstance(given, np.ma.MaskedArray):
        raise StateDictError(
            "is a masked array, whose mask would be lost",
            hint="use `filled()` to get a plain array",
        )
    if isinstance(value, np.ndarray):
        return cast("NDArray[Any]", value)
    if not hasattr(given, "__dlpack__"):
        raise StateDictError(f"is a {type(given).__name__}, not an array", hint=_ARRAYS)
    try:
        return take(on_cpu(value))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise StateDictError(f"cannot be read: {error}", hint=_ARRAYS) from error
