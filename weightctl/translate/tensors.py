"""The tensors of a model in the other naming convention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.family import OF_CONFIG
from weightctl.families.steps import convert_form, module_form
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32, Constant
from weightctl.weights.steps.rows import RowOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.families import RecognizedModel
    from weightctl.families.config_keys import Config, NamingConvention
    from weightctl.families.fusions import Fusion
    from weightctl.families.modules import TensorNames
    from weightctl.weights.derived import ReadableTensor

    # A part of a tensor, and the tensor of the model.
    Member = tuple[TensorNames, ReadableTensor]


def translate_tensors(
    checkpoint: RecognizedModel, convention: NamingConvention
) -> dict[str, ReadableTensor]:
    """Return the tensors of a whole checkpoint by their names in a naming convention.

    Raises `ConversionError` if the shape of a tensor does not fit its step.
    """
    family, config = checkpoint.family, checkpoint.config
    members: dict[str, list[Member]] = {}
    for names in family.tensors(config):
        name = names.name(convention)
        if name is not None:
            tensor = _change_tensor(names, checkpoint, convention)
            members.setdefault(name, []).append((names, tensor))
    found = {name: _join(name, each, config, convention) for name, each in members.items()}
    constants = {
        names.name(convention) or "": DerivedTensor(names.module, Constant(numbers, OF_CONFIG), [])
        for names, numbers in family.list_made(config, convention)
    }
    return constants | found


def _change_tensor(
    names: TensorNames, checkpoint: RecognizedModel, convention: NamingConvention
) -> ReadableTensor:
    name, tensor = names.module, checkpoint.tensors[names.module]
    form = module_form(names, checkpoint.convention)
    tensor = convert_form(names, tensor, checkpoint.config, form, convention)
    # llama.cpp requires this type for vectors, and supports no wider matrices.
    is_float32 = names.is_float32 or len(tensor.info.shape) < 2
    kind = tensor.info.encoding
    is_other = kind.name == "F64" or (is_float32 and kind.is_real and kind.name != "F32")
    if convention == "gguf" and is_other:
        tensor = DerivedTensor(name, AsFloat32(), [tensor])
    return tensor


def _join(
    name: str, members: Sequence[Member], config: Config, convention: NamingConvention
) -> ReadableTensor:
    """Return the tensor of a name, which may contain several parts, each of several experts."""
    first, tensor = members[0]
    fusion = first.fusions.get(convention)
    if fusion is None and not first.is_stacked(convention):
        return tensor
    experts: dict[int, list[Member]] = {}
    for member in members:
        experts.setdefault(member[0].expert, []).append(member)
    entries = [
        each[0][1] if fusion is None else _join_parts(name, each, fusion, config)
        for each in experts.values()
    ]
    if not first.is_stacked(convention):
        return entries[0]
    from weightctl.weights.steps.stacked import Stacked

    return DerivedTensor(name, Stacked("experts", len(entries)), entries)


def _join_parts(
    name: str, members: Sequence[Member], fusion: Fusion, config: Config
) -> ReadableTensor:
    """Return the tensor with the parts of one fusion."""
    place = {part: number for number, part in enumerate(fusion.parts)}
    parts = [tensor for _, tensor in sorted(members, key=lambda each: place[each[0].line.module])]
    if len({part.info.encoding for part in parts}) > 1:
        parts = [DerivedTensor(name, AsFloat32(), [part]) for part in parts]
    made: ReadableTensor = parts[0]
    from weightctl.weights.steps.stacked import Joined, Stacked

    if fusion.axis:
        made = DerivedTensor(name, Stacked("parts", len(parts), fusion.axis), parts)
    elif len(parts) > 1:
        made = DerivedTensor(name, Joined(len(parts)), parts)
    if fusion.order is not None:
        made = DerivedTensor(name, RowOrder(tuple(fusion.order(config))), [made])
    if fusion.is_transposed(members[0][0].kind):
        if made.info.encoding.block > 1:
            made = DerivedTensor(name, AsFloat32(), [made])
        from weightctl.weights.steps.transposed import Transposed

        made = DerivedTensor(name, Transposed(), [made])
    return made
