"""Trees with whole weights in place of the tensors that they are stored in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.schemes.arrays.blocks import Integers, block_encoding
from weightctl.schemes.arrays.tables import Region
from weightctl.schemes.arrays.tensors import SchemeTensors, is_half
from weightctl.schemes.arrays.values import Scaled, WholeScale
from weightctl.schemes.buffers import is_activation_scale
from weightctl.schemes.matching import find_quantized, list_scheme_tensors
from weightctl.schemes.scheme import load_scheme
from weightctl.schemes.settings import is_plain_comfy, read_settings
from weightctl.text.untyped import is_object
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor
from weightctl.weights.steps.rows import RowOrder, RowRange, RowsFrom, StackedEntry
from weightctl.weights.steps.stacked import Joined, Stacked
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.values import Blocks, Decoding, WeightValues
    from weightctl.schemes.settings import Settings
    from weightctl.weights.data import Source
    from weightctl.weights.derived import ReadableTensor, Step
    from weightctl.weights.info import Header, TensorInfo

    # Steps that do not change the bytes of rows.
    _Kept: TypeAlias = RowOrder | RowRange | RowsFrom | StackedEntry | Joined | Stacked

# The number of elements that are computed at a time, which is a multiple of all block sizes and of
# all repetitions of packed bits.
_AREA = 1 << 20
_SQUARE = 128
# The limit of bytes of scales that are read for a model, to determine whether blocks can hold them.
_MOST_READ = 2 << 30
# The tensor and the metadata with which ComfyUI marks quantized weights.
_MARKER, _METADATA = "scaled_fp8", "_quantization_metadata"


@dataclass(frozen=True, slots=True, eq=False)
class Dequantized:
    """The float32 values of a weight that is stored in several tensors.

    `shape` is that of the weight. With `transposed`, the tables of `values` have the columns of its
    matrices as rows. `label` is the name of the scheme for users. `blocks` are ggml's blocks with
    the same values, if there are any: their rows are as in these tables, and `whole` is the scale
    of the whole weight that they lack.
    """

    label: str
    shape: tuple[int, ...]
    values: WeightValues
    transposed: bool = False
    blocks: ReadableTensor | None = None
    whole: WholeScale | None = None

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape of the weight, and F32."""
        del inputs
        return self.shape, ENCODINGS["F32"]

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Compute the values of a byte range."""
        made = np.frombuffer(buffer, np.float32)
        first = start // 4
        for strip in _strips(self.shape, first, first + made.size, transposed=self.transposed):
            values = self.values.read(inputs, strip.region)
            rows = (_transpose(values) if self.transposed else values).reshape(-1)
            own = rows[strip.skip : strip.skip + strip.stop - strip.start]
            made[strip.start - first : strip.stop - first] = own

    def __str__(self) -> str:
        return f"dequantized {self.label}"


@dataclass(frozen=True, slots=True, eq=False)
class _Repacked:
    """A weight with its stored values in ggml's blocks, without changing a value.

    Fields are as in `Dequantized`. Rows consist of whole blocks.
    """

    label: str
    shape: tuple[int, ...]
    blocks: Blocks
    transposed: bool = False

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape of the weight, and the encoding of the blocks."""
        del inputs
        return self.shape, self.blocks.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Pack the blocks of a byte range."""
        block, size = self.blocks.encoding.block, self.blocks.encoding.size
        made: U8 = np.frombuffer(buffer, np.uint8)
        first = start // size * block
        last = first + made.size // size * block
        for strip in _strips(self.shape, first, last, transposed=self.transposed):
            packed = self.blocks.read(inputs, strip.region, transposed=self.transposed).reshape(-1)
            begin, end = ((at - first) // block * size for at in (strip.start, strip.stop))
            skip = strip.skip // block * size
            made[begin:end] = packed[skip : skip + end - begin]

    def __str__(self) -> str:
        return f"{self.label} repacked as {self.blocks.encoding.name}"


def _transpose(values: F32) -> F32:
    """Return a transposed table, a few rows at a time, so that squares fit into the cache."""
    made = np.empty(values.shape[::-1], np.float32)
    for first in range(0, len(values), _SQUARE):
        made[:, first : first + _SQUARE] = values[first : first + _SQUARE].T
    return made


class _Strip(NamedTuple):
    """The elements from `start` to `stop` of a weight, and the region of its table with them.

    In the row-major order of the weight, the region has `skip` elements before them.
    """

    region: Region
    start: int
    stop: int
    skip: int


def _strips(shape: tuple[int, ...], start: int, stop: int, *, transposed: bool) -> Iterator[_Strip]:
    """Divide a range of elements into whole rows, or into pieces of rows that are very long."""
    columns = shape[-1] if shape else 1
    # For a transposed weight, a strip must not contain rows of two matrices.
    height = shape[-2] if transposed and len(shape) > 1 else prod(shape[:-1])
    most = max(1, _AREA // columns)
    width = min(columns, _AREA)
    while start < stop:
        row, column = divmod(start, columns)
        matrix, top = divmod(row, height)
        if width == columns:
            count = min(most, height - top, -(-(stop - row * columns) // columns))
            left, right = 0, columns
        else:
            count, left = 1, column // width * width
            right = min(left + width, columns)
        end = min(stop, (row + count - 1) * columns + right)
        region = Region(row, row + count, left, right)
        if transposed:
            before = matrix * columns
            region = Region(before + left, before + right, top, top + count)
        yield _Strip(region, start, end, start - row * columns - left)
        start = end


def find_scheme_tensors(
    source: Source, settings: Settings | None = None
) -> dict[str, SchemeTensors]:
    """Return the stored tensors of each quantized weight, in the order of the first tensors.

    Only small tensors that state shapes are read. `settings` are by default those beside the files.
    """
    header = source.header
    settings = read_settings(header) if settings is None else settings

    def read(name: str) -> bytes:
        made = bytearray(header.tensors[name].nbytes)
        source.read_into(name, 0, memoryview(made))
        return bytes(made)

    return {
        name: SchemeTensors(
            weight,
            tuple(StoredTensor(source, tensor) for tensor in weight.tensors),
            settings.of(name.removesuffix(".weight")),
        )
        for name, weight in find_quantized(header, settings, read).items()
    }


def merge_scheme_tensors(
    source: Source,
    settings: Settings,
    notes: tuple[str, ...] = (),
    *,
    in_blocks: bool,
    keeps_shapes: bool,
) -> Checkpoint:
    """Return the tree of `dequantize_weights`, for a source with at least one quantized weight."""
    header = source.header
    found = find_scheme_tensors(source, settings)
    owner = {tensor: name for name, each in found.items() for tensor in each.weight.tensors}
    _refuse_rest(header, owner)
    _refuse_marked(header)
    decoded = {name: _decode(each) for name, each in found.items()}
    cost = sum(_cost(found[name], each) for name, each in decoded.items())
    whole = {
        name: _merge(
            found[name],
            each,
            in_blocks=in_blocks and not (keeps_shapes and _is_swapped(each)),
            may_read=cost <= _MOST_READ,
        )
        for name, each in decoded.items()
    }
    tensors: dict[str, ReadableTensor] = {}
    left_out: list[str] = []
    for name, info in header.tensors.items():
        if name in owner:
            tensors[owner[name]] = whole[owner[name]]
        elif is_activation_scale(info):
            left_out.append(name)
        elif name.rpartition(".")[2] != _MARKER:
            tensors[name] = StoredTensor(source, name)
    if left_out:
        notes = (
            *notes,
            (f"{len(left_out)} scales of activations are not written, for example `{left_out[0]}`"),
        )
    aliases = _aliases(header, tensors, owner)
    metadata = {key: value for key, value in header.metadata.items() if key != _METADATA}
    return Checkpoint(Derived(source, tensors, metadata, aliases, notes))


def _refuse_rest(header: Header, owner: Mapping[str, str]) -> None:
    """Raise `ConversionError` for stored values and scales that do not form a weight."""
    rest = list_scheme_tensors(header) - owner.keys()
    for name in header.tensors:
        if name in rest:
            raise ConversionError(
                f"`{name}` looks like a part of a quantized weight, but the shape of the "
                "weight cannot be determined",
                hint="put config.json in the directory of the checkpoint, or use the "
                "unquantized model as input",
            )


def _refuse_marked(header: Header) -> None:
    """Raise `ConversionError` for weights that the metadata states to be in other formats."""
    stated = header.metadata.get(_METADATA)
    try:
        document: Any = json.loads(str(stated.content)) if stated else None
    except (ValueError, RecursionError):
        document = None
    layers = document.get("layers") if is_object(document) else None
    for name, each in layers.items() if is_object(layers) else ():
        if not is_plain_comfy(each):
            raise ConversionError(
                f"the metadata `{_METADATA}` states an unsupported format of `{name}`: {each!r}",
                hint="use the unquantized model as input",
            )


def _decode(stored: SchemeTensors) -> Decoding:
    decode = load_scheme(stored.weight.scheme).decode
    if decode is None or not stored.shape:
        raise stored.cannot_dequantize("weightctl does not support this scheme")
    stated = stored.settings.bits
    if stated and stored.bits and stated != stored.bits:
        raise stored.cannot_dequantize(
            f"{stored.settings.where} states {stated} bits, but the shapes of its tensors fit "
            f"{stored.bits} bits"
        )
    return decode(stored)


def _cost(stored: SchemeTensors, decoded: Decoding) -> int:
    """Return the bytes that must be read to determine whether blocks hold a weight exactly."""
    values = decoded.values
    if not decoded.bits or not isinstance(values, Scaled):
        return 0
    is_compared = values.zeros is not None or values.biases is not None
    are_many = is_compared or not is_half(stored.scales.encoding)
    return sum(tensor.info.nbytes for tensor in stored.tensors[1:]) if are_many else 0


def _is_swapped(decoded: Decoding) -> bool:
    """Whether the rows of a weight's blocks are the columns of its matrices."""
    return decoded.microscaled is not None and decoded.transposed


def _merge(
    stored: SchemeTensors, decoded: Decoding, *, in_blocks: bool, may_read: bool
) -> ReadableTensor:
    step: Step | None = None
    if in_blocks:
        step = _make_repacking_step(stored, decoded, may_read=may_read)
    if step is None:
        step = Dequantized(
            stored.weight.label, decoded.shape, decoded.values, decoded.transposed,
            _find_blocks(stored, decoded), decoded.whole,
        )  # fmt: skip
    return DerivedTensor(stored.weight.name, step, stored.tensors)


def _find_blocks(stored: SchemeTensors, decoded: Decoding) -> ReadableTensor | None:
    """Return a weight as MXFP4 or NVFP4, without a scale of the whole weight; None if impossible.

    Blocks of ggml are taken as they are stored.
    """
    if decoded.microscaled is not None:
        step = _pack_floats(stored, decoded, decoded.microscaled)
        return DerivedTensor(stored.weight.name, step, stored.tensors)
    return None if decoded.whole is None else stored.tensors[0]


def _pack_floats(stored: SchemeTensors, decoded: Decoding, blocks: Blocks) -> _Repacked:
    shape = stored.shape
    rows = (*shape[:-2], shape[-1], shape[-2]) if decoded.transposed else shape
    return _Repacked(stored.weight.label, rows, blocks)


def _make_repacking_step(
    stored: SchemeTensors, decoded: Decoding, *, may_read: bool
) -> Step | None:
    """Return the step that repacks a weight into blocks; None if they would change its values."""
    values = decoded.values
    if decoded.microscaled is not None:
        blocks = decoded.microscaled
        return None if decoded.whole else _pack_floats(stored, decoded, blocks)
    if not decoded.bits or not isinstance(values, Scaled) or decoded.shape[-1] % 32:
        return None
    grid = values.scales.grid
    axis = -2 if decoded.transposed else -1
    if grid.order is not None or (grid.blocks[axis] % 32 and grid.counts[axis] != 1):
        return None
    are_half = values.zeros is None and all(
        is_half(stored.tensors[place].info.encoding)
        for place in (1, stored.find(".biases", ".qbiases"))
        if place is not None
    )
    if not are_half and not may_read:
        return None
    encoding = block_encoding(
        values, decoded.bits, stored.tensors, middle=decoded.middle, are_half=are_half,
        may_read=may_read,
    )  # fmt: skip
    if encoding is None:
        return None
    return _Repacked(
        stored.weight.label, decoded.shape, Integers(values, encoding), decoded.transposed
    )


def _aliases(
    header: Header, tensors: Mapping[str, ReadableTensor], owner: Mapping[str, str]
) -> dict[str, str]:
    """Return the tied names of the new tree; if a weight's tensors are tied, the weight is."""
    made: dict[str, str] = {}
    for alias, name in header.aliases.items():
        if name in tensors:
            made[alias] = name
        elif (weight := owner.get(name)) is not None:
            layer = weight.removesuffix(".weight")
            ending = name.removeprefix(layer)
            if alias.endswith(ending):
                made[alias.removesuffix(ending) + weight.removeprefix(layer)] = weight
    return {alias: name for alias, name in made.items() if alias not in tensors}


# Blocks of ggml behind dequantized weights, and the scales of whole weights that they lack. Steps
# of a translation stay: rows in another order, and experts that are stacked or taken apart.


class ScaledBlocks(NamedTuple):
    """A weight in blocks of NVFP4, and the scale of the whole weight or of each matrix."""

    blocks: ReadableTensor
    whole: WholeScale


def find_scaled_blocks(tensor: ReadableTensor) -> ScaledBlocks | None:
    """Return a float32 tensor as NVFP4 with scales; None if it is not computed from such blocks.

    The result has one scale for each matrix, or one for all.
    """
    tensor = resolve(tensor)
    if not isinstance(tensor, DerivedTensor):
        return None
    step = tensor.step
    if isinstance(step, Dequantized):
        if step.blocks is None or step.whole is None or step.transposed:
            return None
        return ScaledBlocks(step.blocks, step.whole)
    if isinstance(step, RowOrder | RowRange | RowsFrom | StackedEntry | Joined | Stacked):
        below = [find_scaled_blocks(each) for each in tensor.inputs]
        found = [each for each in below if each is not None]
        if len(found) == len(below):
            return _apply(tensor.info.name, step, found)
    return None


def _apply(name: str, step: _Kept, found: Sequence[ScaledBlocks]) -> ScaledBlocks | None:
    scales = [each.whole for each in found]
    whole = _stack(step, scales) if isinstance(step, Stacked) else _follow(step, scales)
    if whole is None:
        return None
    return ScaledBlocks(DerivedTensor(name, step, [each.blocks for each in found]), whole)


def find_swapped_blocks(tensor: ReadableTensor) -> ReadableTensor | None:
    """Return the blocks of experts whose float32 values have inputs as rows, as gpt-oss has them.

    The rows of the blocks are the outputs. Returns None if a tensor is not such experts.
    """
    tensor = resolve(tensor)
    if not isinstance(tensor, DerivedTensor) or not isinstance(tensor.step, Dequantized):
        return None
    step = tensor.step
    return step.blocks if step.transposed and step.whole is None else None


def resolve(tensor: ReadableTensor) -> ReadableTensor:
    """Return what a tensor of a derived source is computed from, or taken from."""
    while isinstance(tensor, StoredTensor) and isinstance(tensor.source, Derived):
        tensor = tensor.source.tensor(tensor.name)
    return tensor


def _stack(step: Stacked, scales: Sequence[WholeScale]) -> WholeScale | None:
    """Return the scales of stacked matrices; None if they cannot be stated for each matrix."""
    if step.axis or len({each.use for each in scales}) > 1:
        return None
    if any(each.values.size != 1 for each in scales):
        return None
    return WholeScale(np.concatenate([each.values for each in scales]), scales[0].use)


def _follow(step: _Kept, scales: Sequence[WholeScale]) -> WholeScale | None:
    """Return the one scale of rows that are moved, or joined; None if there are several."""
    first = scales[0]
    if isinstance(step, StackedEntry) and first.values.size > 1:
        return WholeScale(first.values[step.index : step.index + 1], first.use)
    if any(each.use != first.use for each in scales):
        return None
    values = np.unique(np.concatenate([each.values for each in scales]))
    return WholeScale(values, first.use) if values.size == 1 else None
