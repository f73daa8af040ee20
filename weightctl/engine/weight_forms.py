"""Weights in the form that a graph uses: values of a dtype, or blocks as bytes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.errors import EngineError
from weightctl.graph.ops.device_blocks import decodes_on
from weightctl.graph.ops.lowering import decode_blocks, torch_device, torch_dtype
from weightctl.graph.ops.unary import lower_cast

if TYPE_CHECKING:
    from torch import Tensor, device

    from weightctl.device import DeviceRef
    from weightctl.dtype import Encoding, QuantizationEncoding
    from weightctl.engine.stored_weights import StoredWeight
    from weightctl.split import Part
    from weightctl.weights.info import TensorInfo

NAMES = (
    "names and shapes must match the stored tensors; `weightctl ls --flat` lists them for a file"
)
_DTYPES = (
    "convert the value with `astype` (NumPy or `WeightData.astype`), or declare the "
    "weight with the dtype of the value"
)


class BindingProblem(NamedTuple):
    """The reason why a weight cannot be loaded, and a hint."""

    reason: str
    hint: str


class ShardedWhole(NamedTuple):
    """The whole weight that a shard is a `part` of, with the fields of `WeightForm`."""

    name: str
    shape: tuple[int, ...]
    weight: int
    part: Part
    second_names: tuple[str, ...] = ()


class WeightForm(NamedTuple):
    """How a graph uses a weight: under which full `name`, in which dtype, and on which device.

    `shape` counts values, also for blocks. `quantization` is the encoding of a weight that is
    stored as plain bytes; with dtype uint8 the graph uses the blocks themselves, with another dtype
    the values in them. `weight` is the `id` of the graph's `Weight`, by which a tree finds what
    `allocate` requested. For a shard, `whole` is the weight to cut it from. `align` is the
    alignment of the data in bytes. `second_names` are other names under which a registry may have
    the value. The graph reads the weight cast to `read_as`, if given, and with its two dimensions
    swapped if `is_transposed`.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    device: DeviceRef
    quantization: QuantizationEncoding | None = None
    weight: int = 0
    whole: ShardedWhole | None = None
    align: int = 1
    second_names: tuple[str, ...] = ()
    read_as: DType | None = None
    is_transposed: bool = False

    @property
    def blocks(self) -> QuantizationEncoding | None:
        """The encoding of the blocks that the graph uses, None if it uses values."""
        return self.quantization if self.dtype is DType.uint8 else None

    @property
    def base(self) -> WeightForm:
        """The form before it is cast and transposed."""
        return self._replace(read_as=None, is_transposed=False)

    def view(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the form `base` as the graph reads it: cast and transposed."""
        if self.read_as is not None:
            tensor = lower_cast(tensor, dtype=self.read_as)
        return tensor.T if self.is_transposed else tensor

    def __str__(self) -> str:
        kind = self.dtype.value if self.blocks is None else self.blocks.name
        return f"{kind} {list(self.shape)}"


def mismatch(info: TensorInfo, form: WeightForm) -> BindingProblem | None:
    """Return the reason why a stored tensor cannot be loaded in a form, None if it can.

    Values convert to another dtype only without loss. Blocks decode to any float dtype. Nothing is
    encoded as blocks, but a tensor of plain bytes may be declared as blocks.
    """
    found = interpret_info(info, form)
    encoding, own = found.encoding, list(found.shape)
    if form.blocks is not None:
        if found.shape == form.shape and encoding == form.blocks.encoding:
            return None
        hint = NAMES if found.shape != form.shape else _blocks_hint(form.blocks)
        return BindingProblem(f"stored as {encoding} {own}, but the graph reads it as {form}", hint)
    if found.shape != form.shape:
        return BindingProblem(f"stored as {encoding} {own}, but the graph expects {form}", NAMES)
    return _explain_loss(encoding, form.dtype)


def _blocks_hint(blocks: QuantizationEncoding) -> str:
    return (
        f"use `weightctl.convert(..., quant={str(blocks.name)!r})` to create such blocks, "
        "or declare the weight without a quantization_encoding"
    )


def interpret_info(info: TensorInfo, form: WeightForm) -> TensorInfo:
    """Return the info that a graph has of a stored tensor: plain bytes may be declared as blocks.

    A uint8 tensor counts as the blocks of the form's `quantization` if its size in bytes matches.
    """
    if form.quantization is None or info.encoding != DType.uint8.encoding:
        return info
    blocks = form.quantization.encoding
    is_bare = info.nbytes == blocks.nbytes(form.shape)
    return info._replace(shape=form.shape, encoding=blocks) if is_bare else info


def _explain_loss(encoding: Encoding, dtype: DType) -> BindingProblem | None:
    try:
        torch_dtype(dtype)
    except EngineError as error:
        return BindingProblem(error.message, error.hint)
    if _converts(encoding, dtype):
        return None
    reason = f"stored as {encoding}; {dtype.value} cannot hold all of its values"
    return BindingProblem(reason, _DTYPES)


def _converts(encoding: Encoding, dtype: DType) -> bool:
    if encoding == dtype.encoding:
        return True
    from weightctl.codecs import can_decode, holds_all

    if not encoding.is_known:
        return False
    if encoding.dtype is not None:
        return holds_all(encoding, dtype.encoding)
    return dtype.is_float and encoding.quantization is not None and can_decode(encoding)


def is_kept_as_stored(info: TensorInfo, form: WeightForm) -> bool:
    """Whether a resident weight is kept in its stored encoding, as blocks are.

    A GPU also keeps values of 8 bits as they are: it converts them where they are used.
    """
    encoding = interpret_info(info, form).encoding
    return encoding.dtype is None or (form.device.kind != "cpu" and _is_short(encoding, form))


def _is_short(encoding: Encoding, form: WeightForm) -> bool:
    """Whether values are floats of a byte each, and are read in a wider dtype."""
    stored = encoding.dtype
    if stored is None or stored is DType.float4_e2m1fn or not stored.is_float:
        return False
    return encoding.size == 1 and (form.read_as or form.dtype) is not stored


def place_of_stored(info: TensorInfo, form: WeightForm) -> device:
    """Return the torch device to which the bytes of a weight are copied as they are stored."""
    encoding = interpret_info(info, form).encoding
    is_plain = encoding.dtype not in {None, DType.float4_e2m1fn} or form.blocks is not None
    is_there = is_plain or decodes_on(form.device.kind, encoding)
    return torch_device(form.device if is_there else CPU)


def make_tensor(stored: StoredWeight, form: WeightForm) -> Tensor:
    """Return a stored tensor in a form, on its device and with its alignment.

    Raises `EngineError` if the stored bytes do not decode to that dtype.
    """
    return form.view(_align_tensor(_decode_tensor(stored, form), form.align))


def _decode_tensor(stored: StoredWeight, form: WeightForm) -> Tensor:
    place, dtype = torch_device(form.device), torch_dtype(form.dtype)
    raw, encoding = stored.raw(), interpret_info(stored.info, form).encoding
    if form.blocks is not None:
        return _in_rows(raw, form.blocks.encoding, form.shape).to(place)
    if encoding.dtype is None or encoding.dtype is DType.float4_e2m1fn:
        rows = raw[None] if encoding.dtype else _in_rows(raw, encoding, form.shape)
        if decodes_on(form.device.kind, encoding):
            # Blocks are smaller than values: copy them to the device, and decode them there.
            rows = rows.to(place)
        numbers = decode_blocks(rows, encoding, form.dtype)
    else:
        numbers = raw.view(torch_dtype(encoding.dtype))
    numbers = numbers.reshape(form.shape)
    if numbers.dtype.itemsize > dtype.itemsize:
        numbers = numbers.to(dtype)
    return numbers.to(place).to(dtype)


def _align_tensor(tensor: Tensor, align: int) -> Tensor:
    """Return a tensor whose data has the given alignment; copies it only if it does not have it."""
    if tensor.data_ptr() % align == 0:
        return tensor
    import torch

    memory = torch.empty(tensor.nbytes + align, dtype=torch.uint8, device=tensor.device)
    start = -memory.data_ptr() % align
    placed = memory[start : start + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
    return placed.copy_(tensor)


def _in_rows(raw: Tensor, encoding: Encoding, shape: tuple[int, ...]) -> Tensor:
    return raw.reshape(prod(shape[:-1]), encoding.row_bytes(shape[-1]))
