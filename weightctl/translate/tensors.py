"""A model's tensors in the other naming convention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32, Constant
from weightctl.weights.steps.stacked import Stacked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.families import RecognizedModel
    from weightctl.families.family import Family, TensorNames
    from weightctl.families.keys import Config, NamingConvention
    from weightctl.weights.derived import ReadableTensor

__all__ = ["translate_tensors"]


def translate_tensors(
    checkpoint: RecognizedModel, convention: NamingConvention
) -> dict[str, ReadableTensor]:
    """Return the tensors of a whole checkpoint by their names in a naming convention.

    Raises `ConversionError` if the shape of a tensor does not fit its step.
    """
    family, config = checkpoint.family, checkpoint.config
    found: dict[str, ReadableTensor] = {}
    stacks: dict[str, list[ReadableTensor]] = {}
    for names in family.tensors(config):
        name = names.name(convention)
        if name is None:
            continue
        tensor = _change_tensor(names, checkpoint.tensors[names.module], config, convention)
        if names.is_stacked(convention):
            # A placeholder; the stack is made when all of its tensors are known.
            stacks.setdefault(name, []).append(tensor)
        found[name] = tensor
    for name, parts in stacks.items():
        found[name] = DerivedTensor(name, Stacked("experts", len(parts)), parts)
    return dict(_make_constants(family, config)) | found if convention == "gguf" else found


def _change_tensor(
    names: TensorNames, tensor: ReadableTensor, config: Config, convention: NamingConvention
) -> ReadableTensor:
    name, change = names.module, names.change
    if change is not None:
        if not change.is_of_rows and tensor.info.encoding.block > 1:
            tensor = DerivedTensor(name, AsFloat32(), [tensor])
        step = change.to_gguf(config) if convention == "gguf" else change.to_hugging_face(config)
        tensor = DerivedTensor(name, step, [tensor])
    # llama.cpp requires this type for vectors, and supports no wider matrices.
    is_float32 = names.is_float32 or len(tensor.info.shape) < 2
    is_wide = tensor.info.encoding.name == "F64"
    if convention == "gguf" and (is_wide or (is_float32 and tensor.info.encoding.name != "F32")):
        tensor = DerivedTensor(name, AsFloat32(), [tensor])
    return tensor


def _make_constants(family: Family, config: Config) -> Iterator[tuple[str, ReadableTensor]]:
    """Yield the tensors in which GGUF stores settings of config.json."""
    for line in family.names:
        numbers = None if line.made is None else line.made(config)
        if numbers is not None and line.gguf is not None:
            name = f"{line.gguf}.weight"
            yield name, DerivedTensor(name, Constant(numbers, "of the config"), [])
