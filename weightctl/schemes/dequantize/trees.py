"""A checkpoint's tree with whole weights in place of their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from weightctl.errors import ConversionError
from weightctl.formats.huggingface import config as config_beside
from weightctl.schemes.dequantize.blocks import Integers, block_encoding
from weightctl.schemes.dequantize.parts import SchemeTensors, is_half
from weightctl.schemes.dequantize.settings import Settings
from weightctl.schemes.dequantize.steps import Dequantized, Repacked
from weightctl.schemes.dequantize.values import Scaled
from weightctl.schemes.logical import find_quantized
from weightctl.schemes.logical import parts as parts_in
from weightctl.system.registry import load
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.schemes.dequantize.form import DecodingScheme
    from weightctl.schemes.logical import Quantized
    from weightctl.weights.derived import ReadableTensor, Step
    from weightctl.weights.info import Header
    from weightctl.weights.source import Source

__all__ = ["without_parts"]

# By the first word of what the packing is called; those that are called `... scaled` are one.
_FORMS = {
    "AWQ": "weightctl.schemes.dequantize.integers:awq",
    "BitNet": "weightctl.schemes.dequantize.floats:bitnet",
    "FP4": "weightctl.schemes.dequantize.bitsandbytes:four_bit",
    "GPTQ": "weightctl.schemes.dequantize.integers:gptq",
    "LLM.int8()": "weightctl.schemes.dequantize.floats:llm_int8",
    "MLX": "weightctl.schemes.dequantize.integers:mlx",
    "MXFP4": "weightctl.schemes.dequantize.floats:mxfp4",
    "MXFP8": "weightctl.schemes.dequantize.floats:mxfp8",
    "NF4": "weightctl.schemes.dequantize.bitsandbytes:four_bit",
    "NVFP4": "weightctl.schemes.dequantize.floats:nvfp4",
}
_SCALED = "weightctl.schemes.dequantize.floats:scaled"
# What stands beside the weights of a quantized model for its activations and its cache.
_ACTIVATIONS = (
    ".input_scale", ".output_scale", ".q_scale", ".k_scale", ".v_scale", ".kv_scale",
    ".prob_scale", ".input_zero_point", ".output_zero_point", ".k_zero_point", ".v_zero_point",
    ".input_global_scale", ".k_global_scale", ".v_global_scale", ".activation_scale",
    ".prob_output_scale", ".softmax_scale_quant",
)  # fmt: skip
# Elements that a scale of activations has at the most: one for each channel of a cache.
_MOST_CHANNELS = 1 << 14
# Scales of a whole model are read up to so many bytes, to find out whether blocks can hold them.
_MOST_READ = 2 << 30


def without_parts(source: Source, *, in_blocks: bool) -> Checkpoint:
    """Return the tree of `dequantize_weights`, for a source with something stored in parts."""
    header = source.header
    config = config_beside(header.files)

    def read(name: str) -> bytes:
        made = bytearray(header.tensors[name].nbytes)
        source.read_into(name, 0, memoryview(made))
        return bytes(made)

    found = find_quantized(header, config, read)
    _refuse_rest(header, found)
    settings = Settings(config)
    weights = {name: _parts(source, each, settings) for name, each in found.items()}
    forms = {name: _form(each) for name, each in weights.items()}
    cost = sum(_cost(weights[name], form) for name, form in forms.items())
    whole = {
        name: _whole(weights[name], form, in_blocks=in_blocks, may_read=cost <= _MOST_READ)
        for name, form in forms.items()
    }
    owner = {part: name for name, each in found.items() for part in each.parts}
    tensors: dict[str, ReadableTensor] = {}
    left_out: list[str] = []
    for name, info in header.tensors.items():
        if name in owner:
            tensors[owner[name]] = whole[owner[name]]
        elif name.endswith(_ACTIVATIONS) and info.size <= _MOST_CHANNELS:
            left_out.append(name)
        else:
            tensors[name] = StoredTensor(source, name)
    notes: tuple[str, ...] = ()
    if left_out:
        notes = (f"{len(left_out)} scales of activations are left out, as `{left_out[0]}`",)
    aliases = _aliases(header, tensors, owner)
    return Checkpoint(Derived(source, tensors, header.metadata, aliases, notes))


def _refuse_rest(header: Header, found: Mapping[str, Quantized]) -> None:
    """Raise `ConversionError` for parts of no weight."""
    known = {part for each in found.values() for part in each.parts}
    rest = parts_in(header) - known
    for name in header.tensors:
        if name in rest:
            raise ConversionError(
                f"`{name}` looks like a part of a quantized weight whose shape nothing says",
                hint="is config.json beside the checkpoint? Else start from the unquantized model",
            )


def _parts(source: Source, each: Quantized, settings: Settings) -> SchemeTensors:
    tensors = tuple(StoredTensor(source, part) for part in each.parts)
    layer = settings.of(each.name.removesuffix(".weight"))
    return SchemeTensors(each.name, each.shape, each.scheme, tensors, layer)


def _form(parts: SchemeTensors) -> DecodingScheme:
    scheme = parts.scheme
    name = _SCALED if scheme.endswith(" scaled") else _FORMS.get(scheme.split()[0])
    if name is None or not parts.shape:
        raise parts.cannot_dequantize("weightctl does not know how")
    return cast("Callable[[SchemeTensors], DecodingScheme]", load(name))(parts)


def _cost(parts: SchemeTensors, form: DecodingScheme) -> int:
    """Return the bytes that must be read to know whether blocks hold a weight exactly."""
    values = form.values
    if not form.bits or not isinstance(values, Scaled):
        return 0
    are_many = values.zeros is not None or not is_half(parts.scales.encoding)
    return sum(part.info.nbytes for part in parts.tensors[1:]) if are_many else 0


def _whole(
    parts: SchemeTensors, form: DecodingScheme, *, in_blocks: bool, may_read: bool
) -> ReadableTensor:
    step: Step | None = None
    if in_blocks:
        step = _make_repacking_step(parts, form, may_read=may_read)
    if step is None:
        step = Dequantized(parts.scheme, form.shape, form.values, form.turned)
    return DerivedTensor(parts.name, step, parts.tensors)


def _make_repacking_step(
    parts: SchemeTensors, form: DecodingScheme, *, may_read: bool
) -> Step | None:
    """Return the step that makes blocks of a weight; None where they would not be the same."""
    values = form.values
    if form.microscaled is not None:
        return Repacked(parts.scheme, parts.shape, form.microscaled)
    if not form.bits or not isinstance(values, Scaled) or form.shape[-1] % 32:
        return None
    grid = values.scales.grid
    axis = -2 if form.turned else -1
    if grid.order is not None or (grid.blocks[axis] % 32 and grid.counts[axis] != 1):
        return None
    are_half = values.zeros is None and all(
        is_half(parts.tensors[place].info.encoding)
        for place in (1, parts.find(".biases", ".qbiases"))
        if place is not None
    )
    if not are_half and not may_read:
        return None
    encoding = block_encoding(
        values, form.bits, parts.tensors, middle=form.middle, are_half=are_half
    )
    if encoding is None:
        return None
    return Repacked(parts.scheme, form.shape, Integers(values, encoding), form.turned)


def _aliases(
    header: Header, tensors: Mapping[str, ReadableTensor], owner: Mapping[str, str]
) -> dict[str, str]:
    """Return the further names of what is there; parts with two names are a weight with two."""
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
