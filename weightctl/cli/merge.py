"""`weightctl merge`: merge LoRA adapters into a model."""

from __future__ import annotations

from typing import Annotated

import typer

from weightctl.cli.completion import complete_quant_types, complete_type_rules, complete_types
from weightctl.cli.options import (
    Anonymous,
    DryRun,
    Force,
    From,
    Json,
    Memory,
    On,
    Path,
    Quiet,
    Report,
    TaskSize,
    Threads,
    To,
    examples,
    exit_codes,
    locate,
)
from weightctl.cli.planned import plan_conversion
from weightctl.cli.writing import write_output
from weightctl.translate.plans import Names
from weightctl.write.conversion_tasks import DEFAULT_MEMORY
from weightctl.write.convert import NonFinite
from weightctl.write.executors.worker import DEFAULT_TASK

app = typer.Typer(add_completion=False)


@app.command(
    epilog="\n\n".join(
        [
            exit_codes("success"),
            examples(
                [
                    "weightctl merge model/ adapter/ merged/",
                    "weightctl merge model/ adapter/:0.5 merged-half/",
                    "weightctl merge model/ adapter/ merged-q4.gguf --quant Q4_K_M",
                    "weightctl merge model.gguf adapter/ merged.gguf -n",
                ]
            ),
        ]
    )
)
def merge(
    *,
    path: Path,
    adapters: Annotated[
        list[str],
        typer.Argument(
            metavar="ADAPTER[:WEIGHT]...",
            help="The LoRA adapters to merge: directories that PEFT saved, or files. WEIGHT "
            "multiplies the changes of the adapter; the default is 1.",
        ),
    ],
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="The path to write. Its suffix selects the format; a path without a suffix is a "
            "model directory.",
        ),
    ],
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Store values as TYPE, such as bf16. By default, each weight keeps its type.",
            autocompletion=complete_types,
        ),
    ] = None,
    quant: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="Quantize matrices, as convert does: a recipe such as Q4_K_M, a type, or a .toml "
            "file.",
            autocompletion=complete_quant_types,
        ),
    ] = None,
    tensor_types: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor-type",
            metavar="REGEX=TYPE",
            help="Store tensors as TYPE if REGEX matches anywhere in their name. Repeatable.",
            autocompletion=complete_type_rules,
        ),
    ] = None,
    imatrix: Annotated[
        str | None,
        typer.Option(
            "--imatrix",
            metavar="FILE",
            help="Use an importance matrix for the quantization.",
            callback=locate,
        ),
    ] = None,
    allow_requantize: Annotated[
        bool,
        typer.Option(
            "--allow-requantize",
            help="Allow weights of a quantized model to be quantized again after the merge, which "
            "loses precision.",
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a metadata key, as convert does. Repeatable."
        ),
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Split the output into files of at most SIZE, such as 5GB."
        ),
    ] = None,
    to: To = None,
    source: From = None,
    force: Force = False,
    dry_run: DryRun = False,
    threads: Threads = None,
    memory: Memory = f"{DEFAULT_MEMORY >> 20}MiB",
    on: On = None,
    task_size: TaskSize = f"{DEFAULT_TASK >> 30}GiB",
    report: Report = None,
    anonymous: Anonymous = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Merge LoRA adapters into a model, and write it in any format or type.

    Each weight is decoded, the product of the adapter's matrices is added in float32, and the sum
    is stored in the type of the weight, or as --dtype or --quant says. The adapter has the tensor
    names of the Hugging Face model; the model can also be a GGUF file.
    """
    del anonymous  # its callback has taken effect
    given = dict(locals())
    write_output(path, *plan_conversion(_DEFAULTS | given), given)


# The parameters of `convert` that `merge` does not have.
_DEFAULTS: dict[str, object] = {
    "search": False,
    "mmproj": None,
    "base": None,
    "nonfinite": NonFinite.ERROR,
    "exact": False,
    "strict": False,
    "no_fallback": False,
    "names": Names.AUTO,
    "weights_only": False,
    "renamings": None,
    "include": None,
    "exclude": None,
    "without": None,
    "unset": None,
    "alignment": None,
    "header_room": None,
    "partial": False,
    "private": False,
    "pull_request": False,
}
