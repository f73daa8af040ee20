"""Writes models that are in memory: those of transformers, with the adapters of PEFT in them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArgumentTypeError
from weightctl.formats.open.in_memory import is_model, open_model
from weightctl.write.convert import convert

if TYPE_CHECKING:
    from weightctl.plan.recipe_lines import Recipe
    from weightctl.plan.scheme_names import SchemeRecipe
    from weightctl.plan.types import TypeLike
    from weightctl.write.conversion import Conversion


def to_gguf(
    model: object,
    out: str | os.PathLike[str],
    *,
    quant: TypeLike | Recipe | os.PathLike[str] | None = None,
    tokenizer: object = None,
    **options: Any,
) -> Conversion:
    """Write a model of transformers or PEFT that is in memory to a GGUF file.

    The file is the one that `convert` makes of the directory that `save_pretrained` writes: LoRA
    adapters of PEFT that are active are merged, and the model in memory stays as it is. Tensors are
    converted one after the other. `tokenizer` is that of transformers, or the path of a directory
    with its files. The other options are those of `convert`, such as `dtype` and `metadata`.

    Raises the errors of `convert`, and `ConversionError` if the parameters of the model are
    quantized or not in memory.
    """
    return _write(model, out, tokenizer, {"to": "gguf", "quant": quant, **options})


def to_directory(
    model: object,
    out: str | os.PathLike[str],
    *,
    quant: TypeLike | SchemeRecipe | os.PathLike[str] | None = None,
    tokenizer: object = None,
    **options: Any,
) -> Conversion:
    """Write a model of transformers or PEFT that is in memory to a directory, as safetensors.

    `quant` is a type for model directories, such as "W4A16". The rest is as in `to_gguf`.
    """
    return _write(model, os.path.join(out, ""), tokenizer, {"quant": quant, **options})


def _write(
    model: object, out: str | os.PathLike[str], tokenizer: object, options: dict[str, Any]
) -> Conversion:
    if not is_model(model):
        raise ArgumentTypeError(
            f"{type(model).__name__} is not a model of transformers with a config",
            hint="`convert` takes paths, trees and the `state_dict()` of other modules",
        )
    name = os.path.splitext(os.path.basename(os.path.normpath(out)))[0]
    opened = open_model(model, name, tokenizer)
    adapters: list[Any] = []
    if opened.adapters:
        from weightctl.adapters.reading import read_adapter  # few models have adapters

        adapters = [read_adapter(each, f"`{name}`") for name, each in opened.adapters.items()]
    return convert(opened.weights, out, adapters=adapters, **options)
