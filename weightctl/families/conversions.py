"""Conversion of tensors between the naming conventions and the form our modules compute with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from weightctl.families.changes import Squeezed
from weightctl.families.extra_axes import ExtraAxes
from weightctl.families.keys import NamingConvention
from weightctl.families.parts import shape_of
from weightctl.families.scaled_weights import HalvedByLayer
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32, LogOfMinus, MinusExp
from weightctl.weights.steps.reshaped import InShape

if TYPE_CHECKING:
    from weightctl.families.family import TensorNames
    from weightctl.families.keys import Config
    from weightctl.weights.derived import ReadableTensor, Step

# A naming convention, or `module` for a form that neither of them has.
Form: TypeAlias = NamingConvention | Literal["module"]


def module_form(names: TensorNames, convention: NamingConvention) -> Form:
    """Return the form of a tensor in our modules.

    `convention` is that of the model's checkpoint.
    """
    change = names.change
    if isinstance(change, ExtraAxes):
        return "module"
    return convention if change is None else change.runs_as or convention


def convert_form(
    names: TensorNames, tensor: ReadableTensor, config: Config, form: Form, wanted: Form
) -> ReadableTensor:
    """Return a tensor in the form `wanted`.

    The tensor is returned unchanged if the forms are the same. Raises `ConversionError` if its
    shape does not fit the change between the forms.
    """
    change = names.change
    if change is None or form == wanted:
        return tensor
    if isinstance(change, HalvedByLayer):
        change = change.at(names.layer)
    steps: list[Step | None]
    if isinstance(change, ExtraAxes):
        steps = _list_steps(names, change, config, form, wanted)
    elif isinstance(change, Squeezed) and wanted == "hugging_face" and not change.is_run_without:
        # GGUF files may have dimensions of 1 before the others, which mean nothing to ggml.
        steps = [InShape(shape_of(names, config))]
    else:
        steps = [change.to_gguf(config) if wanted == "gguf" else change.to_hugging_face(config)]
    if steps == [None]:
        return tensor
    if not change.is_of_rows and tensor.info.encoding.block > 1:
        tensor = DerivedTensor(names.module, AsFloat32(), [tensor])
    for step in steps:
        if step is not None:
            tensor = DerivedTensor(names.module, step, [tensor])
    return tensor


def _list_steps(
    names: TensorNames, change: ExtraAxes, config: Config, form: Form, wanted: Form
) -> list[Step | None]:
    """Return the steps to the form of our modules, and from there to the form `wanted`."""
    own = shape_of(names, config)
    steps: list[Step | None] = [InShape(own)]
    if change.is_exponential and form == "gguf":
        steps.append(LogOfMinus())
    if change.is_exponential and wanted == "gguf":
        steps.append(MinusExp())
    if wanted != "module":
        steps.append(InShape(change.shape(own, wanted)))
    return steps
