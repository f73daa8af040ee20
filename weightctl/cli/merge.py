"""`weightctl merge`: merge LoRA adapters into a model."""

from __future__ import annotations

from typing import Annotated

import typer

from weightctl.cli import options
from weightctl.plan.choices import DEFAULT_TASK
from weightctl.write.conversion_tasks import DEFAULT_MEMORY

app = typer.Typer(add_completion=False)


@app.command()
def merge(
    *,
    path: options.Path,
    adapters: Annotated[list[str], typer.Argument()],
    out: Annotated[str, typer.Argument()],
    dtype: options.Dtype = None,
    quant: options.Quant = None,
    tensor_types: options.TensorTypes = None,
    imatrix: options.InputFile = None,
    allow_requantize: options.AllowRequantize = False,
    metadata: options.Settings = None,
    max_shard_size: str | None = None,
    to: options.To = None,
    source_format: options.From = None,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    threads: options.Threads = None,
    memory: options.Memory = f"{DEFAULT_MEMORY >> 20}MiB",
    on: str | None = None,
    task_size: str = f"{DEFAULT_TASK >> 30}GiB",
    report: options.OutputFile = None,
    anonymous: options.Anonymous = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Merge LoRA adapters into a model, and write it in any format or type.

    Each weight is decoded, the product of the adapter's matrices is added in float32, and the sum
    is stored in the type of the weight, or as --dtype or --quant says. The adapter has the tensor
    names of the Hugging Face model; the model can also be a GGUF file.
    """
    del anonymous  # its callback has taken effect
    given = dict(locals())
    # An error in the command line is found without what plans and writes.
    from weightctl.cli.conversion import plan_conversion, write_output

    write_output(path, *plan_conversion(given), given)
