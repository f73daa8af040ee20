"""`weightctl ls`: list the tensors of checkpoints."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from weightctl.cli import options
from weightctl.cli.costs import show_document
from weightctl.cli.help import HelpCommand
from weightctl.cli.render import (
    columns,
    complain,
    is_terminal,
    note,
    show_lines,
    show_notes,
    show_table,
    show_text,
    warn,
)
from weightctl.errors import FormatError, OutputError, WeightctlError
from weightctl.formats import DIRECTORY_FORMATS, FORMATS, OTHER_SUFFIXES
from weightctl.formats.open.opening import open_weights
from weightctl.storage.files import is_directory
from weightctl.storage.traffic import TRAFFIC
from weightctl.text.columns import Cell, width
from weightctl.text.sizes import format_size, parse_size
from weightctl.text.wording import join_names, pluralize, printable
from weightctl.weights.metadata import as_json, describe_value
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightctl.families.memory.estimate import FittingLayers, MemoryEstimate
    from weightctl.inspection.contents import Contents
    from weightctl.storage.traffic import TrafficCounts
    from weightctl.weights.metadata import MetadataValue
    from weightctl.weights.tree import Checkpoint

app = typer.Typer(add_completion=False)


_JSON = "--json"


class ListCommand(HelpCommand):
    """A command whose option `--meta` may be given without a key.

    It passes on whether `--json` is given to options that do not need a MODEL.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, with an empty key for a `--meta` that has none."""
        before = args[: args.index("--")] if "--" in args else args
        ctx.meta[_JSON] = _JSON in before
        return super().parse_args(ctx, _with_key(args))


def _with_key(arguments: Sequence[str]) -> list[str]:
    made: list[str] = []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        if argument == "--":
            return [*made, argument, *left]
        if argument == "--meta":
            has_key = left and not left[0].startswith("-") and not _is_path(left[0])
            argument = f"--meta={left.pop(0) if has_key else ''}"
        made.append(argument)
    return made


def _is_path(argument: str) -> bool:
    """Whether an argument is an existing path, or looks like a misspelled one."""
    lines = (*FORMATS.values(), *DIRECTORY_FORMATS.values())
    suffixes = (*(suffix for line in lines for suffix in line.suffixes), *OTHER_SUFFIXES)
    return os.path.lexists(argument) or "/" in argument or argument.endswith(suffixes)


def _print_families(context: typer.Context, wanted: bool) -> None:
    if not wanted:
        return
    if context.meta[_JSON]:
        show_document(_document_families())
    else:
        _show_families()
    raise typer.Exit


@app.command(cls=ListCommand)
def ls(
    *,
    paths: options.Models = None,
    depth: options.AtLeastOne = None,
    flat: Annotated[bool, typer.Option("--flat")] = False,
    details: Annotated[bool, typer.Option("--long", "-l")] = False,
    include: options.TensorNames = None,
    exclude: options.TensorNames = None,
    sort: options.Sort | None = None,
    hashes: Annotated[bool, typer.Option("--hash")] = False,
    meta: str | None = None,
    values: Annotated[bool, typer.Option("--values")] = False,
    scan: Annotated[bool, typer.Option("--scan")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v")] = False,
    allow: list[str] | None = None,
    allow_file: options.InputFile = None,
    sarif: options.OutputFile = None,
    force: options.Force = False,
    fit: str | None = None,
    context: options.AtLeastOne = None,
    kv_type: str | None = None,
    anonymous: options.Anonymous = False,
    families: Annotated[
        bool, typer.Option("--families", callback=_print_families, is_eager=True)
    ] = False,
    draft: Annotated[bool, typer.Option("--draft-family")] = False,
    as_json: options.Json = False,
    source_format: options.From = None,
    quiet: options.Quiet = False,
) -> None:
    """List what is in checkpoints: tensors, shapes, types, sizes; or the models on this machine.

    Without MODEL, list the models on this machine: in the cache of Hugging Face, in Ollama, in LM
    Studio, and in the current directory. A directory with several models is listed like this, too.

    Layers with the same tensor names, shapes and types are shown as one entry. Without --hash and
    --scan, only headers are read, so the time does not depend on the file size.
    """
    del anonymous, families  # their callbacks have taken effect
    if not scan and (verbose or force or allow or allow_file is not None or sarif is not None):
        raise WeightctlError(
            "-v, --allow, --allow-file, --sarif and --force can only be used with --scan",
            hint="add --scan, or leave out these options",
        )
    asked = ListChoices(
        depth, flat, details, hashes, sort, include or (), exclude or (), meta, as_json, quiet,
        len(paths or ()) > 1, scan, values, fit, context, kv_type, draft,
    )  # fmt: skip
    if not paths:
        _show_models(None, asked)
        return
    asked.check()
    if scan:
        from weightctl.cli.scanned import ScanChoices, scan_paths

        choices = ScanChoices(as_json, quiet, verbose, allow or (), allow_file, sarif, force)
        raise typer.Exit(scan_paths(paths, choices))
    _list_each(paths, source_format, asked)


def _list_each(paths: Sequence[str], source_format: str | None, asked: ListChoices) -> None:
    """List checkpoints; exit with 1 if one does not fit a memory, and 2 if one is unreadable."""
    if asked.fit is not None:
        parse_size(asked.fit)  # it is refused once, and not for each path
    shown, fits = 0, True
    for path in paths:
        try:
            before = TRAFFIC.counts
            weights = _open(path, source_format)
            if shown and not asked.as_json and not asked.meta:
                show_lines([[]])
            if weights is None:
                _show_models(path, asked)
            else:
                fits &= _show(path, weights, asked, before)
            shown += 1
        except OutputError:
            raise
        except (WeightctlError, OSError) as error:
            if not asked.several:
                raise
            complain(error, as_json=asked.as_json)
    if shown < len(paths):
        raise typer.Exit(2)
    if not fits:
        raise typer.Exit(1)


def _show_models(directory: str | None, asked: ListChoices) -> None:
    from weightctl.cli.models import ModelChoices, show_models

    asked.check_for_models()
    by = None if asked.sort is None else asked.sort.value
    choices = ModelChoices(by, asked.fit, asked.context, asked.kv_type, asked.as_json, asked.quiet)
    show_models(directory, choices)


def _open(path: str, source_format: str | None) -> Checkpoint | None:
    """Open a checkpoint; return None for a directory with several, of which none is chosen."""
    try:
        return open_weights(path, source_format, partial=True)
    except FormatError as error:
        if source_format is None and error.path == path and is_directory(path):
            from weightctl.inspection.models import find_models

            if len(find_models(path)) > 1:
                return None
        raise


def _show(path: str, weights: Checkpoint, asked: ListChoices, before: TrafficCounts) -> bool:
    """Show a checkpoint; return False if it does not fit into the memory of --fit."""
    if asked.meta or asked.draft:
        _show_text(path, weights, asked)
        return True
    from weightctl.inspection.contents import Contents

    fit = _find_fit(weights, asked.fit, asked.context, asked.kv_type)

    contents = Contents(weights, asked.include, asked.exclude)
    for text in weights.header.warnings:
        warn(text)
    show_notes(header_of(weights).notes, quiet=asked.quiet)
    is_empty = not (contents.entries or contents.tensors or contents.leaves)
    if contents.count and is_empty and not asked.quiet:
        note(f"{path}: none of the {contents.count} tensors matches --include and --exclude")
    if asked.as_json:
        _show_json(path, contents, asked, before, fit)
    elif fit is not None:
        _show_fit(path, contents, asked, fit)
    elif asked.meta is not None:
        _show_metadata(path, contents, asked)
    elif asked.is_flat:
        _show_flat(path, contents, asked)
    else:
        _show_tree(path, contents, asked)
    return fit is None or fit.fits


def _show_fit(path: str, contents: Contents, asked: ListChoices, fit: FitResult) -> None:
    from weightctl.cli.overview import summary
    from weightctl.inspection.details import read_details

    if not asked.quiet:
        show_lines([*summary(path, contents), []])
    show_lines(fit.list_lines())
    show_table(fit.list_rows())
    trained, context = read_details(contents).context_length, fit.estimate.options.context
    if trained is not None and context > trained and not asked.quiet:
        note(f"the model is made for {trained:,} tokens, and the context has {context:,}")


def _show_text(path: str, weights: Checkpoint, asked: ListChoices) -> None:
    if asked.draft:
        from weightctl.families.drafts import draft_family

        show_text(draft_family(weights))
        return
    value = _find_value(header_of(weights).metadata, asked.meta or "", path)
    if asked.as_json:
        from weightctl.cli.overview import value_document

        show_text(json.dumps(value_document(value)) + "\n")
    else:
        _show_value(value)


def _show_metadata(path: str, contents: Contents, asked: ListChoices) -> None:
    from weightctl.cli.overview import summary

    metadata = header_of(contents.weights).metadata
    if not asked.quiet:
        show_lines([*summary(path, contents), *([[]] if metadata else [])])
        if not metadata:
            note(f"{path}: the header has no metadata")
    _show_values(metadata)


def _show_json(
    path: str, contents: Contents, asked: ListChoices, before: TrafficCounts, fit: FitResult | None
) -> None:
    from weightctl.cli.overview import document
    from weightctl.cli.stored import hash_tensors, sort_names

    made = document(
        path,
        contents,
        [*contents.tensors] if asked.sort is None else sort_names(contents, asked.sort),
        digests=hash_tensors(contents, quiet=asked.quiet) if asked.hashes else None,
        whole_metadata=asked.meta is not None,
    )
    if fit is not None:
        made["fit"] = fit.document
    show_document(made, before)


def _show_flat(path: str, contents: Contents, asked: ListChoices) -> None:
    from weightctl.cli.stored import find_equal, hash_tensors, list_rows, sort_names

    names = sort_names(contents, asked.sort)
    digests = hash_tensors(contents, quiet=asked.quiet) if asked.hashes else None
    equal = find_equal(contents, names, digests or {})
    if asked.several and not asked.quiet:
        show_lines([[Cell(printable(f"{path}:"), "bold")]])
    heading = asked.details and not asked.quiet
    show_table(
        list_rows(
            contents, names, details=asked.details, heading=heading, digests=digests, equal=equal
        )
    )
    if equal and not asked.quiet:
        verb = "has" if len(equal) == 1 else "have"
        note(f"{pluralize(len(equal), 'tensor')} {verb} the same bytes as another (=)")


def _show_tree(path: str, contents: Contents, asked: ListChoices) -> None:
    from weightctl.cli.overview import FoldedValues, list_shown, summary, tree_rows

    shown = list_shown(contents, with_values=asked.values)
    if not asked.quiet:
        show_lines([*summary(path, contents), *([[]] if shown else [])])
    show_table(tree_rows(contents, shown, asked.depth))
    folded = sum(each.values for each in shown.values() if isinstance(each, FoldedValues))
    if folded and not asked.quiet:
        note(f"{pluralize(folded, 'value')} folded; --values lists them")


class ListChoices(NamedTuple):
    """The options of a run; `meta` is empty if --meta has no key, and None without --meta."""

    depth: int | None
    flat: bool
    details: bool
    hashes: bool
    sort: options.Sort | None
    include: Sequence[str]
    exclude: Sequence[str]
    meta: str | None
    as_json: bool
    quiet: bool
    several: bool
    scan: bool
    values: bool
    fit: str | None
    context: int | None
    kv_type: str | None
    draft: bool

    @property
    def is_flat(self) -> bool:
        """Whether tensors are listed one by one."""
        return self.flat or self.details or self.hashes or self.sort is not None

    def check_for_models(self) -> None:
        """Raise `WeightctlError` for options that do not apply to a list of models."""
        lists_tensors = (
            self.depth, self.flat, self.details, self.hashes, self.include, self.exclude,
            self.meta is not None, self.values, self.scan, self.draft,
            self.sort is options.Sort.OFFSET,
        )  # fmt: skip
        if any(lists_tensors):
            raise WeightctlError(
                "a list of models only has the options --sort, --fit, --context, --kv-type, --json "
                "and --quiet",
                hint="name one model: `weightctl ls MODEL`",
            )

    def check(self) -> None:
        """Raise `WeightctlError` if options contradict each other."""
        others = (
            self.is_flat, self.depth, self.meta is not None, self.include, self.exclude,
            self.values, self.fit is not None,
        )  # fmt: skip
        if self.scan and any(others):
            raise WeightctlError(
                "--scan lists the globals of pickles, not tensors: it cannot be combined with "
                "--depth, --flat, -l, --sort, --hash, --meta, --values, --fit, --include or "
                "--exclude",
                hint="leave out --scan, or the other options",
            )
        if self.draft and (self.scan or self.several or self.as_json or any(others)):
            raise WeightctlError(
                "--draft-family prints one file, and cannot be combined with other options or "
                "several models",
                hint="leave out the other options, and name one model",
            )
        if self.depth is not None and self.is_flat:
            raise WeightctlError(
                "--depth cannot be combined with --flat, -l, --sort or --hash: they show a list, "
                "not a tree",
                hint="leave out --depth, or the other options",
            )
        if self.values and (self.is_flat or self.meta is not None):
            raise WeightctlError(
                "--values cannot be combined with --flat, -l, --sort, --hash or --meta: they show "
                "a list, not a tree",
                hint="leave out --values, or the other options",
            )
        if self.fit is None and (self.context is not None or self.kv_type is not None):
            raise WeightctlError(
                "--context and --kv-type can only be used with --fit",
                hint="add --fit SIZE, or leave out these options",
            )
        if self.fit is not None and any(others[:-1]):
            raise WeightctlError(
                "--fit is for the whole model and lists no tensors: it cannot be combined with "
                "--depth, --flat, -l, --sort, --hash, --meta, --values, --include or --exclude",
                hint="leave out --fit, or the other options",
            )
        if self.meta is not None and self.is_flat and (self.meta or not self.as_json):
            raise WeightctlError(
                "--meta shows metadata, but --flat, -l, --sort and --hash list tensors",
                hint="leave out --flat, -l, --sort and --hash",
            )


# Metadata: `ls --meta`.

# The columns that a value takes if stdout is not a terminal, and the fewest columns on a terminal.
_VALUE_ROOM = 120
_LEAST_ROOM = 24


def _show_values(metadata: Mapping[str, MetadataValue]) -> None:
    """Print each key, its type, and the part of its value that fits on a line."""
    room = _VALUE_ROOM
    if metadata and is_terminal():
        keys = max(width(printable(key)) for key in metadata)
        types = max(len(value.type) for value in metadata.values())
        room = max(columns() - keys - types - 4, _LEAST_ROOM)
    show_table(
        (Cell(key), Cell(value.type, "cyan"), Cell(describe_value(value, room)))
        for key, value in metadata.items()
    )


def _find_value(metadata: Mapping[str, MetadataValue], key: str, path: str) -> MetadataValue:
    """Return the value of a key.

    Raises `WeightctlError` with similar keys as a hint if the key is missing.
    """
    if key in metadata:
        return metadata[key]
    others = [each for each in metadata if each.startswith("tokenizer.")]
    if key == "tokenizer.chat_template" and others:
        raise WeightctlError(
            f"{path}: the model has no chat template",
            hint="a base model continues texts, and needs none; its tokenizer has "
            f"{join_names(others, 6)}",
        )
    import difflib  # only on an error

    near = difflib.get_close_matches(key, metadata, n=3)
    if near:
        hint = f"did you mean {' or '.join(f'`{each}`' for each in near)}?"
    else:
        hint = "`--meta` without a key lists all keys" if metadata else "the header has no metadata"
    raise WeightctlError(f"{path}: there is no metadata key `{key}`", hint=hint)


def _show_value(value: MetadataValue) -> None:
    """Print a text unchanged, or any other value as a line of JSON."""
    content = value.content
    if not isinstance(content, str):
        show_text(json.dumps(as_json(content)) + "\n")
    elif is_terminal():
        # Line breaks and tabs are kept; other control characters are escaped.
        show_text("".join(c if c in "\n\t" else printable(c) for c in content) + "\n")
    else:
        show_text(content + "\n")


# The memory that a model needs, and how much of it fits: `ls --fit`.


class FitResult(NamedTuple):
    """A memory in bytes, as it was given, the estimate, and what fits."""

    given: str
    memory: int
    estimate: MemoryEstimate
    found: FittingLayers

    @property
    def layers(self) -> int:
        """The number of layers of the model."""
        return len(self.estimate.layer_weights)

    @property
    def fits(self) -> bool:
        """Whether all layers and the output fit."""
        return self.found.gpu_layers == self.layers + 1

    @property
    def document(self) -> dict[str, Any]:
        """The result as JSON, according to `schemas/ls.json`."""
        estimate, chosen = self.estimate, self.estimate.options
        return {
            "memory": self.memory,
            "context": chosen.context,
            "kv_type": chosen.kv_type.name,
            "fits": self.fits,
            "layers": self.layers,
            "fitting_layers": self.found.layers,
            "gpu_layers": self.found.gpu_layers,
            "weights": estimate.weights - estimate.embedding,
            "embedding": estimate.embedding,
            "caches": estimate.kinds,
            "compute": estimate.compute,
            "overhead": self.found.overhead,
            "bytes": self._count_device(),
        }

    def _count_device(self) -> int:
        """Return the bytes that the whole model needs on a device, with the overhead."""
        return self.estimate.total - self.estimate.embedding + self.found.overhead

    def list_lines(self) -> Iterator[Sequence[Cell]]:
        """Yield the first line: whether the model fits."""
        context = f"with a context of {self.estimate.options.context:,} tokens"
        if self.fits:
            yield [Cell(f"fits into {self.given} {context}", "bold")]
            return
        yield [Cell(f"does not fit into {self.given} {context}", "bold")]
        if self.found.gpu_layers == 1:
            yield [Cell("no layer fits, but the output does: --n-gpu-layers 1")]
        elif self.found.gpu_layers:
            layers = f"{self.found.layers} of {pluralize(self.layers, 'layer')}"
            yield [Cell(f"{layers} and the output fit: --n-gpu-layers {self.found.gpu_layers}")]
        else:
            yield [Cell("no layer fits: --n-gpu-layers 0")]

    def list_rows(self) -> Iterator[Sequence[Cell]]:
        """Yield the rows of the table: what needs how much memory."""
        from weightctl.families.memory.caches import CACHE_KINDS

        estimate, chosen = self.estimate, self.estimate.options
        yield _make_row("weights", estimate.weights - estimate.embedding)
        for kind, layers, cells, nbytes in estimate.kinds:
            note = f"{pluralize(layers, 'layer')}, {cells:,} tokens, {chosen.kv_type}"
            if not cells:
                note = f"{pluralize(layers, 'layer')}, F32"
            name = CACHE_KINDS[kind]
            yield _make_row(f"KV cache, {name}" if cells else name, nbytes, note)
        yield _make_row("compute buffers", estimate.compute, f"{chosen.tokens} tokens at a time")
        yield _make_row("overhead", self.found.overhead, "kept free")
        yield _make_row("total", self._count_device(), style="bold")
        if estimate.embedding:
            yield _make_row("token embedding", estimate.embedding, "stays in main memory")


def _make_row(name: str, nbytes: int, note: str = "", style: str = "") -> Sequence[Cell]:
    return [Cell(name, style), Cell(format_size(nbytes), style, right=True), Cell(note, "dim")]


def _find_fit(
    weights: Checkpoint, given: str | None, context: int | None, kv_type: str | None
) -> FitResult | None:
    """Return what fits, from the values of the options; None without --fit.

    Raises `WeightctlError` for invalid values, and the errors of `recognize` and `estimate_memory`.
    """
    if given is None:
        return None
    from weightctl.families.memory.caches import MemoryOptions
    from weightctl.families.memory.estimate import estimate_memory
    from weightctl.families.recognition import recognize

    memory = parse_size(given)
    model = recognize(weights)
    wanted = MemoryOptions.of(context or model.config.context, kv_type or "F16")
    estimate = estimate_memory(model, wanted)
    return FitResult(given, memory, estimate, estimate.fit(memory))


# Supported families: `ls --families`, and a table of the documentation.


class FamilyEntry(NamedTuple):
    """A model family, and what weightctl can do with its models.

    `model_types` are the values of `model_type` in config.json. `runs_in_verify` says whether
    `verify` can run the models, and `vllm_layout` whether `shard --layout vllm` can write them.
    """

    family: str
    model_types: tuple[str, ...]
    gguf_architecture: str
    transformers_classes: tuple[str, ...]
    runs_in_verify: bool
    vllm_layout: bool


def list_families() -> Iterator[FamilyEntry]:
    """Yield all supported families in the order of their names."""
    # These imports load the index of families, and `load` their modules.
    from weightctl.families import FAMILIES
    from weightctl.families.added import add_installed_families
    from weightctl.sharding.vllm_names import VLLM_FAMILIES

    add_installed_families()
    for name, line in sorted(FAMILIES.items()):
        family = line.load()
        yield FamilyEntry(
            name,
            line.model_types,
            line.gguf,
            tuple(each.class_name for each in family.model_types.values()),
            bool(family.module),
            name in VLLM_FAMILIES,
        )


def _show_families() -> None:
    """Print the supported families as two tables: text models, and diffusion transformers."""
    heads = ("family", "model_type", "GGUF architecture", "runs in verify", "vLLM layout")
    _show_family_table(
        heads,
        (
            (
                family.family,
                ", ".join(family.model_types),
                family.gguf_architecture,
                "yes" if family.runs_in_verify else "no",
                "yes" if family.vllm_layout else "no",
            )
            for family in list_families()
        ),
    )
    show_lines([[]])
    columns_of_diffusion = ("diffusion family", "diffusers class", "GGUF architecture")
    _show_family_table(
        columns_of_diffusion, ((name, each, name) for name, each in _list_diffusion_families())
    )


def _show_family_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    show_table([[Cell(head, "dim") for head in heads], *([*map(Cell, row)] for row in rows)])


def _list_diffusion_families() -> list[tuple[str, str]]:
    """Return the names of diffusion transformers, each with its class of diffusers."""
    from weightctl.families.diffusion import list_diffusion_families

    return [(name, each.class_name) for name, each in sorted(list_diffusion_families().items())]


def _document_families() -> dict[str, Any]:
    """Return the supported families as JSON, according to `schemas/ls.json` in the package."""
    return {
        "families": list_families(),
        "diffusion_families": [
            {"family": name, "diffusers_class": each, "gguf_architecture": name}
            for name, each in _list_diffusion_families()
        ],
    }
