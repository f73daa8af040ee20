"""`weightctl convert`: convert a checkpoint to another format, dtype or encoding."""

from __future__ import annotations

from typing import Annotated

import typer

from weightctl.cli.options import (
    Anonymous,
    Base,
    DryRun,
    Exclude,
    Force,
    From,
    HeaderRoom,
    Include,
    Json,
    Memory,
    Mmproj,
    On,
    Partial,
    Path,
    Private,
    PullRequest,
    Quiet,
    Report,
    Search,
    TaskSize,
    Threads,
    To,
    Without,
    examples,
    exit_codes,
)
from weightctl.cli.planned import plan_conversion
from weightctl.cli.type_options import (
    Bpw,
    CalibrationFile,
    Context,
    Dtype,
    Fit,
    Imatrix,
    KvType,
    MaxKld,
    Quant,
    RecipeOut,
    SameType,
    Size,
    TensorTypes,
    TextFile,
    Types,
    describe_types,
)
from weightctl.cli.writing import write_output
from weightctl.translate.plans import Names
from weightctl.write.conversion_tasks import DEFAULT_MEMORY
from weightctl.write.convert import NonFinite
from weightctl.write.executors.worker import DEFAULT_TASK

_TYPES = "Types"
_CONTENT = "Content"
_FILES = "Files"

app = typer.Typer(add_completion=False)


@app.command(
    epilog="\n\n".join(
        [
            *describe_types(),
            exit_codes("success"),
            examples(
                [
                    "weightctl convert model/ model.gguf",
                    "weightctl convert model/ model-q4.gguf --quant Q4_K_M",
                    "weightctl convert model-q4.gguf model-bf16/ --dtype bf16",
                    "weightctl convert model/ model-mine.gguf --quant recipe.toml -n",
                    (
                        "weightctl convert model/ model-q4-v8.gguf --quant Q4_K \\\n"
                        "    --tensor-type attn_v=Q8_0"
                    ),
                    "weightctl convert model/ model-4.5.gguf --bpw 4.5 --recipe-out found.toml",
                    "weightctl convert model/ model-w4/ --quant W4A16:group=64",
                    "weightctl convert model/ model-f16/ --dtype f16",
                    "weightctl convert model/ model-split/ --max-shard-size 1MB",
                ]
            ),
        ]
    )
)
def convert(
    *,
    path: Path,
    out: Annotated[
        str | None,
        typer.Argument(
            metavar="OUT",
            help="The path to write. Its suffix selects the format; a path without a suffix is a "
            "model directory. OUT can also be a URL, a pipe, or - for stdout.",
        ),
    ] = None,
    dtype: Dtype = None,
    quant: Quant = None,
    tensor_types: TensorTypes = None,
    imatrix: Imatrix = None,
    bpw: Bpw = None,
    size: Size = None,
    max_kld: MaxKld = None,
    fit: Fit = None,
    context: Context = None,
    kv_type: KvType = None,
    types: Types = None,
    same_type: SameType = None,
    text_file: TextFile = None,
    calibration_file: CalibrationFile = None,
    recipe_out: RecipeOut = None,
    search: Search = False,
    nonfinite: Annotated[
        NonFinite,
        typer.Option(
            "--nonfinite",
            help="If a tensor to be quantized has NaN or infinity, stop with an error, or store 0.",
            rich_help_panel=_TYPES,
        ),
    ] = NonFinite.ERROR,
    allow_requantize: Annotated[
        bool,
        typer.Option(
            "--allow-requantize",
            help="Allow tensors that are already quantized to be quantized again, which loses "
            "precision.",
            rich_help_panel=_TYPES,
        ),
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Store every value exactly, or stop with an error. Tensors that stay unquantized "
            "are written as F32 if a smaller type would round them.",
            rich_help_panel=_TYPES,
        ),
    ] = False,
    no_fallback: Annotated[
        bool,
        typer.Option(
            "--no-fallback",
            help="Stop with an error if a row length is not a multiple of the block size, instead "
            "of using a fallback type.",
            rich_help_panel=_TYPES,
        ),
    ] = False,
    names: Annotated[
        Names,
        typer.Option(
            "--names",
            help="Naming convention of the output, for tensor names, config and tokenizer. gguf: "
            "as in GGUF files; hf: as in Hugging Face models; openai: as in OpenAI's Whisper and "
            "CLIP; keep: as in MODEL; auto: gguf if OUT is a GGUF file, openai if OUT is a file of "
            "whisper.cpp, hf if OUT is a directory, keep otherwise.",
            rich_help_panel=_CONTENT,
        ),
    ] = Names.AUTO,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Stop with an error if llama.cpp runs the output differently from transformers, "
            "or not at all, instead of a note.",
            rich_help_panel=_CONTENT,
        ),
    ] = False,
    mmproj: Mmproj = None,
    base: Base = None,
    weights_only: Annotated[
        bool,
        typer.Option(
            "--weights-only",
            help="Leave out training state: optimizer state, step counts, random number generator "
            "state and hyperparameters. If all weights are under one key (such as Lightning's "
            "state_dict), remove that key from their names.",
            rich_help_panel=_CONTENT,
        ),
    ] = False,
    renamings: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            metavar="REGEX=NEW|FILE",
            help="Rename input tensors: replace each match of REGEX in a name with NEW, or apply "
            "the rules in a TOML file. The first matching rule decides. Names are replaced before "
            "--names translates them. Repeatable.",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    include: Include = None,
    exclude: Exclude = None,
    without: Without = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a metadata key. KEY:u32=5 also sets the type of the value. KEY=@FILE "
            "reads the value from a file. Repeatable.",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Remove metadata keys that match GLOB. Repeatable.",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Split the output into files of at most SIZE, such as 5GB.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    alignment: Annotated[
        str | None,
        typer.Option(
            "--align",
            metavar="BYTES",
            help="Start each tensor at a multiple of BYTES, a power of two of at least 8. In "
            "safetensors, only the data section as a whole is aligned.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    header_room: HeaderRoom = None,
    to: To = None,
    source: From = None,
    partial: Partial = False,
    private: Private = False,
    pull_request: PullRequest = False,
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
    """Convert a checkpoint to another format or type, or quantize it.

    When converting between Hugging Face directories and GGUF files, weightctl translates tensor
    names, config and tokenizer. This requires a supported model family; for other families, use
    --names keep.
    --include, --exclude and --tensor-type match the tensor names of the output.

    The output is written under a temporary name, and renamed when it is complete. To resume an
    interrupted run, run the same command again.
    """
    del anonymous  # its callback has taken effect
    given = dict(locals())
    write_output(path, *plan_conversion(given), given)
