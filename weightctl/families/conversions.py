"""Tensors of a model in a naming convention, and as our modules compute with them."""

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
    """Return the convention whose form a tensor has in the modules of a model.

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
    """Return a tensor in the form of another naming convention, unchanged if it is the same.

    Raises `ConversionError` if its shape does not fit the change between the conventions.
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
