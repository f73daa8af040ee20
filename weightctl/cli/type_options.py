"""The options of `convert` that select the types of tensors."""

from __future__ import annotations

from typing import Annotated

import typer

from weightctl.cli.completion import (
    complete_quant_types,
    complete_type_rules,
    complete_types,
)
from weightctl.cli.options import locate, locate_local, section
from weightctl.plan.type_names import list_recipes, plain_types, single_types
from weightctl.schemes import WRITTEN

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


_BUDGET = "Budget"

Bpw = Annotated[
    float | None,
    typer.Option(
        "--bpw",
        metavar="BITS",
        help="Find the types of a GGUF file or a model directory with at most BITS bits per weight "
        "whose predictions differ least from those of MODEL, by running the model. Needs torch.",
        rich_help_panel=_BUDGET,
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="SIZE",
        help="The same, for a file of at most SIZE, such as 14GB.",
        rich_help_panel=_BUDGET,
    ),
]
MaxKld = Annotated[
    float | None,
    typer.Option(
        "--max-kld",
        metavar="NATS",
        help="The same, for the smallest file whose mean KL divergence from MODEL is at most NATS, "
        "measured on the text of --text-file.",
        rich_help_panel=_BUDGET,
    ),
]
Fit = Annotated[
    str | None,
    typer.Option(
        "--fit",
        metavar="SIZE",
        help="The same, for a model that llama.cpp can run in a memory of SIZE, such as 24GiB, "
        "with its KV cache and buffers.",
        rich_help_panel=_BUDGET,
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        "--context",
        metavar="N",
        min=1,
        help="With --fit, for a context of N tokens. [default: the context length of the model]",
        rich_help_panel=_BUDGET,
    ),
]
KvType = Annotated[
    str | None,
    typer.Option(
        "--kv-type",
        metavar="TYPE",
        help="With --fit, for a KV cache of TYPE, such as q8_0. [default: f16]",
        rich_help_panel=_BUDGET,
    ),
]
Types = Annotated[
    str | None,
    typer.Option(
        "--types",
        metavar="TYPES",
        help="The types to choose from. [default: Q2_K,Q3_K,Q4_K,Q5_K,Q6_K,Q8_0; for rows that are "
        "not multiples of 256, IQ4_NL,Q4_0,Q4_1,Q5_0,Q5_1,Q8_0; for model directories, "
        "W4A16,W8A16,keep]",
        rich_help_panel=_BUDGET,
    ),
]
SameType = Annotated[
    str | None,
    typer.Option(
        "--same-type",
        metavar="REGEX",
        help="Give all tensors of a layer whose names contain REGEX the same type, such as "
        "'attn_[qkv]'.",
        rich_help_panel=_BUDGET,
    ),
]
TextFile = Annotated[
    str | None,
    typer.Option(
        "--text-file",
        metavar="FILE",
        help="Measure the result on the text in FILE instead of the built-in text.",
        callback=locate,
        rich_help_panel=_BUDGET,
    ),
]
CalibrationFile = Annotated[
    str | None,
    typer.Option(
        "--calibration-file",
        metavar="FILE",
        help="Find the types with the text in FILE instead of another built-in text.",
        callback=locate,
        rich_help_panel=_BUDGET,
    ),
]
RecipeOut = Annotated[
    str | None,
    typer.Option(
        "--recipe-out",
        metavar="FILE",
        help="Write the found types to FILE, a recipe that --quant reads.",
        callback=locate_local,
        rich_help_panel=_BUDGET,
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
