"""Conversion of tensors between the naming conventions and the form our modules compute with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32

if TYPE_CHECKING:
    from weightctl.families.family import TensorNames
    from weightctl.families.keys import Config, NamingConvention
    from weightctl.weights.derived import ReadableTensor

__all__ = ["convert_form", "module_form"]


def module_form(names: TensorNames, convention: NamingConvention) -> NamingConvention:
    """Return the naming convention whose form a tensor has in our modules.

    `convention` is that of the model's checkpoint.
    """
    change = names.change
    return convention if change is None else change.runs_as or convention


def convert_form(
    names: TensorNames,
    tensor: ReadableTensor,
    config: Config,
    form: NamingConvention,
    wanted: NamingConvention,
) -> ReadableTensor:
    """Return a tensor in the form of the naming convention `wanted`.

    The tensor is returned unchanged if the forms are the same. Raises `ConversionError` if its
    shape does not fit the change between the conventions.
    """
    change = names.change
    if change is None or form == wanted:
        return tensor
    step = change.to_gguf(config) if wanted == "gguf" else change.to_hugging_face(config)
    if step is None:
        return tensor
    if not change.is_of_rows and tensor.info.encoding.block > 1:
        tensor = DerivedTensor(names.module, AsFloat32(), [tensor])
    return DerivedTensor(names.module, step, [tensor])
