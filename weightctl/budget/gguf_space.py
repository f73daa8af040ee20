"""The matrices of a planned GGUF file, and the types that their rows fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.budget.errors_by_type import measure_errors
from weightctl.budget.space import SearchedTensor
from weightctl.budget.view import view_plan
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.families.names import layer
from weightctl.plan.cast import fit_encoding
from weightctl.plan.recipe_lines import OTHERWISE
from weightctl.plan.type_rules import BY_RULE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.dtype import Encoding
    from weightctl.families import RecognizedModel
    from weightctl.plan.plan import Item, Plan


class GgufSpace:
    """The matrices of a plan for GGUF whose type no rule decides; raises as `list_candidates`."""

    alignment = 32

    def __init__(
        self, plan: Plan, types: Sequence[Encoding], in_place: Sequence[Encoding] = ()
    ) -> None:
        self._plan = plan
        found = list_candidates(plan, types, in_place)
        self._items = {item.info.name: item for item, _ in found}
        self.tensors = [
            SearchedTensor(
                item.info.name,
                item.info.size,
                {each.name: each.nbytes(item.info.shape) for each in fitting},
                item.source.encoding.name,
            )
            for item, fitting in found
        ]
        self.others = [i.info.nbytes for i in plan.items if i.info.name not in self._items]
        self.size = sum(item.info.size for item in plan.items)

    def view(self, types: Mapping[str, str] | None = None) -> RecognizedModel:
        """Return the model that the plan would write, with tensors in these types."""
        if types is None:
            return view_plan(self._plan)
        return view_plan(self._plan, {name: ENCODINGS[kind] for name, kind in types.items()})

    def measure_errors(self, tensor: SearchedTensor) -> dict[str, float]:
        """Return the mean squared error of each type, on a sample of rows."""
        kinds = [ENCODINGS[kind] for kind in tensor.nbytes]
        return measure_errors(self._plan, self._items[tensor.name], kinds)

    def join(self, name: str) -> tuple[int | None, str]:
        """Return the layer of a tensor, and its name: llama.cpp joins no tensors."""
        return layer(name), name


def list_candidates(
    plan: Plan, types: Sequence[Encoding], in_place: Sequence[Encoding] = ()
) -> list[tuple[Item, tuple[Encoding, ...]]]:
    """Return the matrices that the recipe of a plan chose no type for, with the types they can get.

    If the blocks of some types do not divide the rows, these types are replaced by those of
    `in_place` that do; without any, each one by llama.cpp's substitute for it. Raises
    `ConversionError` if there is not one such matrix, or if a type needs an importance matrix.
    """
    found = [
        (item, _fit_types(types, in_place, item.info.shape))
        for item in plan.items
        if item.line == OTHERWISE
    ]
    if not found:
        raise _explain_nothing(plan)
    for item, fitting in found:
        for each in fitting:
            if each.needs_importance and item.importance is None:
                raise ConversionError(
                    f"{each} needs an importance matrix with an entry for `{item.info.name}`",
                    hint="use --imatrix FILE (imatrix in Python), or leave the type out of --types",
                )
    return found


def _fit_types(
    types: Sequence[Encoding], in_place: Sequence[Encoding], shape: tuple[int, ...]
) -> tuple[Encoding, ...]:
    fitting = [each for each in types if each.fits(shape)]
    others = [each for each in in_place if each.fits(shape)]
    if len(fitting) == len(types) or not others:
        return tuple(dict.fromkeys(fit_encoding(each, shape) for each in types))
    return tuple(dict.fromkeys([*others, *fitting]))


def _explain_nothing(plan: Plan) -> ConversionError:
    """Return the error for a plan without a matrix to quantize."""
    files = plan.source.header.files
    where = f"{files[0]}: " if files else ""
    ruled = next((item for item in plan.items if item.line.startswith(BY_RULE)), None)
    if ruled is not None:
        return ConversionError(
            f"{where}no tensor can be quantized to meet the budget: --tensor-type chooses the type "
            f"of every matrix, for example of `{ruled.info.name}`",
            hint="leave out --tensor-type for some tensors, or use --quant (quant in Python) "
            "instead of a budget",
        )
    return ConversionError(
        f"{where}no tensor can be quantized to meet the budget",
        hint="a budget needs matrices whose names end in `.weight`, other than norms and routers; "
        "for a model without them, use --dtype (dtype in Python)",
    )
