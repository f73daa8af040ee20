"""`weightctl convert`: another format, another dtype, or blocks."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightctl.cli.options import From, Json, Path, Quiet, To, examples
from weightctl.cli.outline import counted, outline
from weightctl.cli.render import Cell, note, printable, show_lines, show_table, show_text
from weightctl.dtype import Encoding, parse_encoding
from weightctl.errors import ConversionError
from weightctl.execute import DEFAULT_MEMORY
from weightctl.formats.huggingface import config
from weightctl.plan import Item, Plan
from weightctl.sizes import format_size, parse_size
from weightctl.store import Saved, Target, check, open_weights, save, target
from weightctl.transforms.cast import cast, is_unfit_for_llama_cpp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from weightctl.cli.outline import Line

__all__ = ["app"]

_LEAST_MEMORY = 4_000_000

app = typer.Typer(add_completion=False)


@app.command(
    epilog=examples(
        [
            "weightctl convert fixtures/tiny-llama tiny.gguf",
            "weightctl convert fixtures/tiny-llama tiny-q8_0.gguf --quant Q8_0",
            "weightctl convert fixtures/tiny-llama tiny-f16 --dtype f16",
            "weightctl convert fixtures/tiny-llama tiny-q4_k.gguf --quant Q4_K --dry-run",
        ]
    )
)
def convert(
    *,
    path: Path,
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="Where to: its suffix is the format; without one it is a model's directory.",
        ),
    ],
    dtype: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="Store numbers as f32, f16, bf16, f64, f8_e4m3 ..."),
    ] = None,
    quant: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="Quantize matrices to Q8_0, Q4_K or Q5_0."),
    ] = None,
    to: To = None,
    source: From = None,
    allow_requantize: Annotated[
        bool,
        typer.Option("--allow-requantize", help="Quantize what is quantized already."),
    ] = False,
    no_fallback: Annotated[
        bool,
        typer.Option("--no-fallback", help="Refuse where a row does not divide into blocks."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show what would be done, and do nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace what is there.")] = False,
    memory: Annotated[
        str, typer.Option("--mem", metavar="SIZE", help="Memory to work in, such as 512MiB.")
    ] = f"{DEFAULT_MEMORY >> 20}MiB",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Convert a checkpoint to another format, dtype or quantization.

    Names and metadata stay as they are, and so does every tensor that is not asked to change.
    The output is written under a temporary name and gets its own when it is complete.
    """
    weights = open_weights(path, source)
    where = target(out, to)
    plan = Plan.copy(weights, where.format)
    wanted = _wanted(dtype, quant)
    if wanted is not None:
        plan = cast(plan, wanted, fallback=not no_fallback, requantize=allow_requantize)
    budget = _budget(memory)
    if not quiet:
        for text in (*weights.header.notes, *_advice(plan, where)):
            note(text)
    if dry_run:
        nbytes = check(plan, where, force=force).nbytes
        if as_json:
            show_text(json.dumps(_document(plan, where, nbytes), indent=2) + "\n")
        elif not quiet:
            entries = {item.source.name: item for item in plan.items}
            show_table(_row(line) for line in outline(weights.tree, entries, _kind))
            show_lines([[], *_summary(path, where, plan, nbytes), [Cell("nothing was written")]])
        return
    with _progress(plan, quiet=quiet) as advance:
        saved = save(plan, where, force=force, memory=budget, progress=advance)
    if as_json:
        show_text(json.dumps(_document(plan, where, saved.nbytes, saved), indent=2) + "\n")
    elif not quiet:
        show_lines([*_summary(path, where, plan, saved.nbytes), [Cell(_speed(saved))]])
    # Numbers that were lost are told of whatever else was asked to be quiet.
    for text in _losses(saved):
        note(text)


def _advice(plan: Plan, where: Target) -> Iterator[str]:
    count = sum(1 for item in plan.items if is_unfit_for_llama_cpp(plan, item))
    if count:
        yield (
            f"{count} vectors are not F32, and llama.cpp computes with no other; --dtype or "
            "--quant makes them so"
        )
    if plan.format == "gguf" and "general.architecture" not in plan.metadata:
        yield (
            "names and metadata stay as they are: without GGUF's own (`general.architecture` and "
            "more) llama.cpp does not load the output"
        )
    if where.file_name is not None and not config(plan.source.header.files):
        yield "no config.json stands beside the input, so transformers does not load the output"


def _budget(text: str) -> int:
    budget = parse_size(text)
    if budget < _LEAST_MEMORY:
        raise ConversionError(
            f"--mem {text} is too little to work in",
            hint="4MB is the least; a number alone is bytes",
        )
    return budget


def _wanted(dtype: str | None, quant: str | None) -> Encoding | None:
    if dtype is not None and quant is not None:
        raise ConversionError(
            "--dtype and --quant are both given", hint="what is not quantized stays as it is"
        )
    if dtype is not None:
        encoding = parse_encoding(dtype)
        kind = encoding.dtype
        if kind is None or not kind.is_float or encoding.name in {"F8_E8M0", "F4"}:
            raise ConversionError(
                f"--dtype {dtype} is no type for weights",
                hint="--quant takes block types" if encoding.quantization else "try bf16 or f16",
            )
        return encoding
    if quant is not None:
        if quant.lower().endswith(("_s", "_m", "_l")):
            raise ConversionError(
                f"{quant} is a mixture of types, and weightctl quantizes to one",
                hint=f"--quant {quant[:-2]} is the plain type, where it has an encoder",
            )
        encoding = parse_encoding(quant)
        is_plain = encoding.dtype is not None and encoding.dtype.is_float
        if not encoding.codec:
            raise ConversionError(
                f"weightctl cannot quantize to {encoding}",
                hint=f"--dtype {quant} stores plain numbers"
                if is_plain
                else "it can to Q8_0, Q5_0 and Q4_K",
            )
        return encoding
    return None


def _kind(item: Item) -> tuple[object, int]:
    info = item.info
    return (info.shape, item.source.encoding.name, info.encoding.name, item.asked), info.nbytes


def _row(line: Line[Item]) -> Sequence[Cell]:
    times = f"  x{line.times}" if line.times > 1 else ""
    label = Cell(f"{'  ' * line.depth}{line.label}{times}", "" if line.entry else "bold")
    size = Cell(format_size(line.nbytes), "dim", right=True)
    item = line.entry
    if item is None:
        if line.name is not None:
            return label, Cell(""), Cell("tied", "cyan")
        count = counted(line.tensors, line.times)
        return label, Cell(count, "dim", right=True), Cell(""), Cell(""), Cell(""), size
    arrow = Cell("" if item.is_copy else "->", "dim")
    changed = Cell("" if item.is_copy else item.info.encoding.name, "cyan")
    why = f"not {item.asked}" if item.asked else ""
    shape = Cell("x".join(map(str, item.info.shape)) or "scalar", right=True)
    before = Cell(item.source.encoding.name)
    return label, shape, before, arrow, changed, size, Cell(why, "yellow")


def _summary(path: str, where: Target, plan: Plan, nbytes: int) -> list[list[Cell]]:
    before = sum(item.source.nbytes for item in plan.items)
    after = sum(item.info.nbytes for item in plan.items)
    ratio = f" ({100 * after / before:.1f} %)" if before else ""
    sizes = f"{format_size(before)} -> {format_size(after)}{ratio}"
    lines = [
        [Cell(f"{printable(path)} -> {printable(where.path)} ({where.format})", "bold")],
        [Cell(f"{len(plan.items)} tensors, {sizes}; the file takes {format_size(nbytes)}")],
    ]
    lines += [[Cell(text)] for text in _changes(plan)]
    return lines + [[Cell(text, "yellow")] for text in _substitutes(plan)]


def _changes(plan: Plan) -> Iterator[str]:
    counts: dict[tuple[str, str], int] = {}
    for item in plan.items:
        key = (item.source.encoding.name, item.info.encoding.name)
        counts[key] = counts.get(key, 0) + 1
    for (before, after), count in counts.items():
        yield f"{count} x {before} kept" if before == after else f"{count} x {before} -> {after}"


def _substitutes(plan: Plan) -> Iterator[str]:
    substituted = [item for item in plan.items if item.asked]
    if substituted:
        parameters = sum(item.info.size for item in plan.items)
        share = 100 * sum(item.info.size for item in substituted) / parameters
        kinds = ", ".join(dict.fromkeys(item.info.encoding.name for item in substituted))
        yield (
            f"{len(substituted)} tensors, {share:.1f} % of the parameters, are {kinds} instead of "
            f"{substituted[0].asked}: their rows are no multiple of its block"
        )


def _speed(saved: Saved) -> str:
    rate = format_size(int(saved.nbytes / max(saved.seconds, 1e-3)))
    return f"{saved.seconds:.1f} s, {rate}/s"


def _losses(saved: Saved) -> Iterator[str]:
    if saved.overflows:
        name, worst = max(saved.overflows.items(), key=lambda entry: entry[1])
        yield (
            f"{sum(saved.overflows.values())} numbers in {len(saved.overflows)} tensors were too "
            f"large for their new type, {worst} of them in {name}; bf16 and f32 hold larger ones"
        )


def _document(plan: Plan, where: Target, nbytes: int, saved: Saved | None = None) -> dict[str, Any]:
    return {
        "output": where.path,
        "format": where.format,
        "bytes": nbytes,
        "written": saved is not None,
        "seconds": saved.seconds if saved else None,
        "tensors": [
            {
                "name": item.info.name,
                "shape": list(item.info.shape),
                "from": item.source.encoding.name,
                "to": item.info.encoding.name,
                "instead_of": item.asked,
                "bytes": item.info.nbytes,
                "overflows": saved.overflows.get(item.info.name, 0) if saved else None,
            }
            for item in plan.items
        ],
    }


def _progress(plan: Plan, *, quiet: bool) -> AbstractContextManager[Callable[[int], object] | None]:
    """Return a bar on stderr, where that is a terminal and somebody wants to see it."""
    if quiet or not sys.stderr.isatty():
        return nullcontext()
    from weightctl.cli.progress import progress_bar

    return progress_bar(sum(item.info.nbytes for item in plan.items))
