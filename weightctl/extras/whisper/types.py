"""Types of the tensors in a file of whisper.cpp, which stores all matrices in one type."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.extras.whisper_cpp import WHISPER_CPP, expected_encoding, is_matrix, matrix_encoding
from weightctl.plan.cast import cast
from weightctl.plan.recipe_lines import Recipe
from weightctl.plan.types import type_or_recipe

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.dtype import Encoding
    from weightctl.plan.plan import Item, Plan
    from weightctl.plan.type_rules import TypeRule
    from weightctl.plan.types import TypeLike

_TYPES = [name for name, each in ENCODINGS.items() if each.quantization and WHISPER_CPP in each.ids]


def cast_to_one_type(
    plan: Plan,
    target: TypeLike | Recipe | os.PathLike[str] | None,
    rules: Sequence[TypeRule] | Mapping[str, TypeLike | None] = (),
    **options: bool,
) -> Plan:
    """Store the tensors of a file of whisper.cpp in other encodings, as `cast` does.

    Raises as `cast` does, and `ConversionError` if the file would need several types.
    """
    chosen = None if target is None else type_or_recipe(target)
    if chosen is None and plan.translation and not rules:
        # The type that whisper.cpp's own scripts write; some of its versions stop at F32 kernels.
        chosen = ENCODINGS["F16"]
        plan = replace(plan, notes=(*plan.notes, *_describe_usual_type(plan)))
    return _settle_types(cast(plan, _choose_one_type(chosen), rules, **options))


def _describe_usual_type(plan: Plan) -> Iterator[str]:
    matrices = [item.info.encoding for item in plan.items if is_matrix(item.info)]
    if any(encoding.name != "F16" and not encoding.quantization for encoding in matrices):
        yield (
            "the matrices become F16, as whisper.cpp's own scripts store them: for float32, "
            "use --dtype f32 (dtype in Python), which some versions of whisper.cpp do not run"
        )


def _choose_one_type(chosen: Encoding | Recipe | None) -> Encoding | None:
    """Return the type for all matrices; raises `ConversionError` for any other recipe."""
    if not isinstance(chosen, Recipe):
        return chosen
    if chosen.name in _TYPES and not chosen.path:
        return ENCODINGS[chosen.name]
    raise ConversionError(
        f"whisper.cpp stores all matrices in one of a few types, and {chosen.name} is not one of "
        "them",
        hint=f"use one of {', '.join(_TYPES)}",
    )


def _settle_types(plan: Plan) -> Plan:
    """Give each tensor the type in which whisper.cpp reads it.

    Vectors and positions are F32, and kernels are F16, or F32 where the matrices are. Matrices of
    several types without blocks, or of a type that whisper.cpp does not read, become F32. Raises
    `ConversionError` if the rows of a matrix do not divide into blocks.
    """
    matrices = [item for item in plan.items if is_matrix(item.info)]
    for item in matrices:
        if item.asked and item.asked != item.info.encoding.name:
            _refuse_rows(item.info.name, item.info.row, item.asked)
    wanted = matrix_encoding([item.info for item in plan.items])
    types = {item.info.encoding for item in matrices}
    is_plain = not any(encoding.quantization for encoding in types)
    if is_plain and (len(types) > 1 or WHISPER_CPP not in wanted.ids):
        wanted = ENCODINGS["F32"]

    def settle(item: Item) -> Item:
        # Matrices in blocks of several types are not changed: the format refuses them.
        if is_matrix(item.info) and not is_plain:
            return item
        encoding = expected_encoding(item.info, wanted)
        return replace(item, info=item.info._replace(encoding=encoding), asked=None)

    return plan.with_items(tuple(map(settle, plan.items)))


def _refuse_rows(name: str, row: int, asked: str) -> None:
    fitting = [each for each in _TYPES if row % ENCODINGS[each].block == 0]
    raise ConversionError(
        f"whisper.cpp stores all matrices in one type, but the rows of `{name}` have {row} values, "
        f"which is not a multiple of the {asked} block size, {ENCODINGS[asked].block}",
        hint=f"use one of {', '.join(fitting)}" if fitting else "use --dtype f16 (dtype in Python)",
    )
