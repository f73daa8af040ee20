"""The options of `convert` that select the types of tensors."""

from __future__ import annotations

from typing import Annotated

import typer

from weightctl.cli.completion import (
    complete_quant_types,
    complete_type_rules,
    complete_types,
)
from weightctl.cli.options import locate, section
from weightctl.plan.type_names import list_recipes, plain_types, single_types
from weightctl.schemes import WRITTEN

__all__ = ["Dtype", "Imatrix", "Quant", "TensorTypes", "describe_types"]

_TYPES = "Types"

Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help=f"Store values as TYPE: {', '.join(plain_types())}.",
        rich_help_panel=_TYPES,
        autocompletion=complete_types,
    ),
]
Quant = Annotated[
    str | None,
    typer.Option(
        metavar="RECIPE",
        help="Quantize matrices. For a GGUF file, RECIPE is a llama.cpp recipe (such as "
        "Q4_K_M), a single type (such as Q4_K), or a .toml file with your own recipe. For a "
        "model directory, it is a type that vLLM, transformers or MLX can load (such as "
        "W4A16), or a .toml file. `weightctl help convert` lists recipes and types.",
        rich_help_panel=_TYPES,
        autocompletion=complete_quant_types,
    ),
]
TensorTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--tensor-type",
        metavar="REGEX=TYPE",
        help="Store tensors as TYPE if REGEX matches anywhere in their name. TYPE is a type of "
        "--dtype or --quant (not a recipe), or 'keep', which leaves them unchanged. The first "
        "matching rule decides. Repeatable.",
        rich_help_panel=_TYPES,
        autocompletion=complete_type_rules,
    ),
]
Imatrix = Annotated[
    str | None,
    typer.Option(
        "--imatrix",
        metavar="FILE",
        help="Use a llama.cpp importance matrix, which reduces the quantization error of the "
        "most important weights.",
        callback=locate,
        rich_help_panel=_TYPES,
    ),
]


def describe_types() -> list[str]:
    """Return the sections of the help of `convert` that list recipes and types."""
    return [
        section(
            "Recipes and types for --quant",
            [
                ("recipes", ", ".join(list_recipes())),
                ("types only", ", ".join(single_types())),
                ("model directories", ", ".join(WRITTEN)),
            ],
        ),
        (
            "Some recipes, such as Q4_0 and Q2_K, have the name of a type. With --quant, such "
            "a name means the recipe, which can store some tensors in other types. If "
            "weightctl cannot detect the role of each tensor (for example, which tensors are "
            "value projections), the name means the type. With --tensor-type, it always means "
            "the type."
        ),
        (
            "Q3_K, Q4_K and Q5_K are single types here. In llama-quantize, they mean the "
            "recipes Q3_K_M, Q4_K_M and Q5_K_M."
        ),
        (
            "For a model directory, options can follow the type, as in W4A16:group=64. "
            "docs/quantization.md lists them."
        ),
    ]
