"""`weightctl convert`: convert a checkpoint to another format, dtype or encoding."""

from __future__ import annotations

from typing import Annotated

import typer

from weightctl.cli import options
from weightctl.plan.choices import DEFAULT_TASK, Names, NonFinite, OptionalPart
from weightctl.write.conversion_tasks import DEFAULT_MEMORY

app = typer.Typer(add_completion=False)


@app.command()
def convert(
    *,
    path: options.Path,
    out: Annotated[str | None, typer.Argument()] = None,
    dtype: options.Dtype = None,
    quant: options.Quant = None,
    tensor_types: options.TensorTypes = None,
    imatrix: options.InputFile = None,
    no_feedback: Annotated[bool, typer.Option("--no-feedback")] = False,
    bpw: float | None = None,
    size: str | None = None,
    max_kld: float | None = None,
    fit: str | None = None,
    context: options.AtLeastOne = None,
    kv_type: str | None = None,
    types: str | None = None,
    same_type: str | None = None,
    text_file: options.InputFile = None,
    calibration_file: options.InputFile = None,
    recipe_out: options.OutputFile = None,
    search: Annotated[bool, typer.Option("--search")] = False,
    nonfinite: NonFinite = NonFinite.ERROR,
    allow_requantize: options.AllowRequantize = False,
    exact: Annotated[bool, typer.Option("--exact")] = False,
    no_fallback: Annotated[bool, typer.Option("--no-fallback")] = False,
    names: Names = Names.AUTO,
    strict: Annotated[bool, typer.Option("--strict")] = False,
    mmproj: options.InputFile = None,
    base: options.InputFile = None,
    config: options.InputFile = None,
    tokenizer: options.InputFile = None,
    weights_only: Annotated[bool, typer.Option("--weights-only")] = False,
    rename: list[str] | None = None,
    include: options.TensorNames = None,
    exclude: options.TensorNames = None,
    without: list[OptionalPart] | None = None,
    metadata: options.Settings = None,
    unset: list[str] | None = None,
    max_shard_size: str | None = None,
    align: str | None = None,
    header_room: str | None = None,
    to: options.To = None,
    source_format: options.From = None,
    partial: Annotated[bool, typer.Option("--partial")] = False,
    private: Annotated[bool, typer.Option("--private")] = False,
    pr: Annotated[bool, typer.Option("--pr")] = False,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    threads: options.Threads = None,
    memory: options.Memory = f"{DEFAULT_MEMORY >> 20}MiB",
    on: str | None = None,
    task_size: str = f"{DEFAULT_TASK >> 30}GiB",
    report: options.OutputFile = None,
    attest: options.OutputFile = None,
    key: options.InputFile = None,
    anonymous: options.Anonymous = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Convert a checkpoint to another format or type, or quantize it.

    When converting between Hugging Face directories and GGUF files, weightctl translates tensor
    names, config and tokenizer. This requires a supported model family; for other families, use
    --names keep. Without OUT, a quantized model is written to MODEL-TYPE.gguf in the current
    directory.
    --include, --exclude and --tensor-type match the tensor names of the output.

    The output is written under a temporary name, and renamed when it is complete. To resume an
    interrupted run, run the same command again.
    """
    del anonymous  # its callback has taken effect
    given = dict(locals())
    if out is None or not {"/", "."}.intersection(out):
        from weightctl.cli.proposed import propose_output, refuse_name_as_output

        if out is None:
            given["out"] = propose_output(path, given)
        else:
            refuse_name_as_output(out, given)
    # An error in the command line is found without what plans and writes.
    from weightctl.cli.conversion import plan_conversion, write_output

    conversion, found = plan_conversion(given)
    if attest is not None or key is not None:
        from weightctl.write.attestation import check_attestation

        inputs, target = conversion.outcome.inputs, conversion.target.path
        check_attestation(attest, key, inputs, force=force, output=target)
    conversion = write_output(path, conversion, found, given)
    if attest is not None and conversion.saved is not None and conversion.saved.is_last:
        from weightctl.write.attestation import attest_conversion

        attest_conversion(conversion, attest, key=key, force=force)
