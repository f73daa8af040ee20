"""`weightctl shard`: split a checkpoint for several ranks, and join the shards."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from weightctl.cli import options
from weightctl.cli.costs import (
    document_times,
    document_workers,
    list_costs,
    list_workers,
    show_document,
)
from weightctl.cli.outline import outline
from weightctl.cli.progress import progress_bar
from weightctl.cli.render import (
    columns,
    is_terminal,
    join_ranks,
    rank_shapes,
    shorten_strategy,
    show_lines,
    show_notes,
    show_sentences,
    show_table,
    strategy_name,
)
from weightctl.cli.report import (
    describe_other_files,
    note_when_stopped,
    planned_resumption,
    resumption,
)
from weightctl.errors import ConversionError, TensorSplitError
from weightctl.formats import format_by_suffix
from weightctl.formats.open.opening import open_weights
from weightctl.plan.choices import DEFAULT_TASK
from weightctl.sharding.plan_file import read_rules
from weightctl.sharding.rank_counts import possible
from weightctl.split import Grid
from weightctl.storage.location import without_file_scheme
from weightctl.text.columns import Cell, hung, make_shape_cells
from weightctl.text.documents import NOT_DOCUMENTED
from weightctl.text.sizes import format_size
from weightctl.text.wording import pluralize, printable
from weightctl.weights.nodes import build_tree
from weightctl.weights.tree import header_of
from weightctl.write.gathering import gathering, put_together
from weightctl.write.shard import list_notes
from weightctl.write.shard import shard as plan_sharding
from weightctl.write.targets import is_stream, stream_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.cli.outline import OutlineLine
    from weightctl.sharding.plan import ShardPlan
    from weightctl.sharding.planning import CutRulesLike
    from weightctl.sharding.rank_counts import Possible
    from weightctl.split import Sharding
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.tree import Checkpoint
    from weightctl.write.gathering import Gathering
    from weightctl.write.outcome import Outcome
    from weightctl.write.save import Saved
    from weightctl.write.shard import ShardedOutput

# The numbers of ranks to try: those of one machine, and of several machines together.
COUNTS = (*range(1, 17), 32, 64)
# The largest number of ranks; each rank has at least one file.
_MOST = 65_536
_AUTO = "auto"

app = typer.Typer(add_completion=False)


class RankFileLayout(Enum):
    """The arrangement of the files of ranks."""

    RANKS = "ranks"
    VLLM = "vllm"


@app.command()
def shard(
    *,
    path: options.Path,
    out: Annotated[str | None, typer.Argument()] = None,
    tensor: Annotated[str | None, typer.Option("--tp", autocompletion=lambda: [_AUTO])] = None,
    experts: Annotated[int | None, typer.Option("--ep", min=1)] = None,
    stages: Annotated[int | None, typer.Option("--pp", min=1)] = None,
    rules: Annotated[str | None, typer.Option("--plan")] = None,
    layout: RankFileLayout | None = None,
    gather: Annotated[bool, typer.Option("--gather")] = False,
    to: Annotated[
        str | None, typer.Option("--to", autocompletion=lambda: ["safetensors", "gguf"])
    ] = None,
    header_room: str | None = None,
    source_format: options.From = None,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    threads: options.Threads = None,
    on: str | None = None,
    task_size: str = f"{DEFAULT_TASK >> 30}GiB",
    anonymous: options.Anonymous = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Split a checkpoint into shards for several ranks, or join shards back into one checkpoint.

    The number of ranks is the product of --tp, --ep and --pp. Attention heads and quantization
    blocks are never split. --tp splits each expert; --ep distributes whole
    experts. Values are copied unchanged.

    To resume an interrupted run, run the same command again.
    """
    del anonymous  # its callback has taken effect
    given = dict(locals())
    axes = {"--tp": tensor, "--ep": experts, "--pp": stages}
    if gather:
        unused = {**axes, "--plan": rules, "--layout": layout, "--from": source_format}
        _refuse(unused, "--gather", "it reads from the manifest how the tensors are split")
        _gather(require_out(out, "--gather DIR OUT"), given)
        return
    if tensor == _AUTO:
        unused = {"OUT": out, **axes, "--tp": None, "--layout": layout, "--to": to}
        _refuse(unused, "--tp auto", "it writes nothing, and lists which N work for --layout ranks")
        found = possible(
            _open_with_notes(path, source_format, quiet=quiet), COUNTS, rules=_rules(rules)
        )
        show_possible(path, found, as_json=as_json)
        return
    sharded = plan_shards(given)
    target = require_out(out, "MODEL OUT --tp N")
    show_notes(sharded.notes, quiet=quiet)
    if not dry_run:
        stored = sharded.plan.source.header.tensors
        with (
            note_when_stopped(sharded.outcome.where),
            progress_bar(
                sharded.outcome.tensor_bytes,
                "sharding",
                quiet=quiet,
                input_bytes=sum(each.nbytes for each in stored.values()),
                has_workers=on is not None,
            ) as advance,
        ):
            sharded = sharded.save(
                force=force, threads=threads, progress=advance, on=on, task_size=task_size
            )
    plan, outcome, saved = sharded.plan, sharded.outcome, sharded.saved
    if as_json:
        show_document(document(path, target, plan, outcome, saved))
    elif not quiet:
        if dry_run:
            show_table(share_rows(plan))
            show_lines([[]])
        show_sentences(summary(path, target, plan, outcome, saved))
        if dry_run:
            show_lines(planned_resumption(sharded.kept_bytes))
    if dry_run:
        # If the plan cannot be carried out, it is shown before the error.
        outcome.refuse(force=force)


def plan_shards(given: Mapping[str, Any]) -> ShardedOutput:
    """Plan shards; `given` maps names of parameters of the command `shard` to values."""
    grid = make_grid({"--tp": given["tensor"], "--ep": given["experts"], "--pp": given["stages"]})
    return plan_sharding(
        given["path"],
        _directory(require_out(given["out"], "MODEL OUT --tp N")),
        tp=grid.tp,
        ep=grid.ep,
        pp=grid.pp,
        rules=given["rules"],
        layout="ranks" if given["layout"] is None else given["layout"].value,
        to=given["to"],
        source_format=given["source_format"],
        header_room=given["header_room"] or 0,
        dry_run=True,
    )


def require_out(out: str | None, usage: str) -> str:
    """Return the path or URL of the output; raises `ConversionError` if it is missing."""
    if not out:
        raise ConversionError("OUT is missing", hint=f"weightctl shard {usage}")
    return without_file_scheme(out)


def _directory(out: str) -> str:
    """Return `out`; raises `ConversionError` if it cannot be the path of a directory."""
    if is_stream(out):
        raise ConversionError(
            f"{stream_name(out)} accepts one file, but a sharded checkpoint has several files",
            hint="use the path of a directory",
        )
    if format_by_suffix(out) and not os.path.isdir(out):
        raise ConversionError(
            f"{out} has the suffix of a file, but a sharded checkpoint is a directory",
            hint="to create a directory of that name, end the path with a slash",
        )
    return out


def make_grid(axes: Mapping[str, str | int | None]) -> Grid:
    """Return the grid of ranks from the values of --tp, --ep and --pp.

    Raises `ConversionError` if none is given, if one is not an integer of at least 1, or if there
    are too many ranks.
    """
    if all(value is None for value in axes.values()):
        raise ConversionError(
            "the number of ranks is missing",
            hint="use --tp N to split layers, --ep N to distribute experts, --pp N for pipeline "
            "stages; --tp auto lists which N work; --gather joins shards",
        )
    numbers = {name: "1" if value is None else str(value) for name, value in axes.items()}
    for name, text in numbers.items():
        if not re.fullmatch(r"0*[1-9]\d{0,99}", text, re.ASCII):
            more = ", or auto" if name == "--tp" else ""
            raise ConversionError(
                f"{name} {text} is not a number of ranks",
                hint=f"use an integer of at least 1{more}",
            )
    grid = Grid(*map(int, numbers.values()))
    if grid.ranks > _MOST:
        raise ConversionError(
            f"{grid.ranks:,} ranks are too many", hint=f"use at most {_MOST:,} ranks"
        )
    return grid


def _open_with_notes(path: str, source_format: str | None, *, quiet: bool) -> Checkpoint:
    weights = open_weights(path, source_format)
    show_notes(header_of(weights).notes, quiet=quiet)
    return weights


def _rules(path: str | None) -> CutRulesLike | None:
    return None if path is None else read_rules(path)


def _refuse(given: Mapping[str, object], action: str, why: str) -> None:
    """Raise `ConversionError` if one of the given options has no effect with `action`."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        options = " and ".join(names)
        raise ConversionError(
            f"{action} cannot be combined with {options}: {why}", hint=f"remove {options}"
        )


# The ranks that work, as --tp auto lists them.


def show_possible(path: str, found: Sequence[Possible], *, as_json: bool) -> None:
    """Print which numbers of ranks work, and the tensor and reason that prevent the others."""
    if as_json:
        show_document(_document_possible(path, found))
        return
    reasons: dict[str, list[int]] = {}
    for each in found:
        reasons.setdefault(_reason(each), []).append(each.ranks)
    counts = {reason: join_ranks(ranks) for reason, ranks in reasons.items()}
    room = max(map(len, counts.values()))
    # Lines for a pipe are not wrapped, unless COLUMNS sets their length.
    wraps = is_terminal() or "COLUMNS" in os.environ
    lines = [[Cell(printable(path), "bold"), Cell(" can be split with --tp")], list[Cell]()]
    for reason, numbers in counts.items():
        head = Cell(f"  {numbers:<{room}}  ", "" if reason else "green")
        lines += hung([head], reason or "works", columns() if wraps else None)
    show_lines(lines)


def _reason(each: Possible) -> str:
    """Return why a number of ranks does not work, in words that do not depend on the number.

    The text is empty if the number works.
    """
    match each.refusal:
        case None:
            return ""
        case TensorSplitError(summary=summary):
            return summary
        case refusal:
            return refusal.message


def _document_possible(path: str, found: Sequence[Possible]) -> dict[str, Any]:
    return {
        "input": path,
        "possible": [
            {
                "tp": each.ranks,
                "works": each.refusal is None,
                "reason": each.refusal.message if each.refusal else None,
            }
            for each in found
        ],
    }


# Gathering.


def _gather(out: str, given: Mapping[str, Any]) -> None:
    """Gather the shards in a directory, and show the result.

    `given` maps names of parameters of the command to values. Raises `ConversionError` if the
    output is a pipe, and the errors of `gathering` and `put_together`.
    """
    path, quiet, on = given["path"], given["quiet"], given["on"]
    described = gathering(path, out, given["to"])
    if described.outcome.where.is_stream:
        raise ConversionError(
            "--gather cannot write to a pipe or stdout",
            hint="to write to a pipe, use "
            f"`weightctl convert {path} - --to {described.plan.format}`",
        )
    show_notes(_list_notes(described), quiet=quiet)
    saved = None
    if not given["dry_run"]:
        nbytes, has_workers = described.nbytes, on is not None
        with progress_bar(nbytes, "joining", quiet=quiet, has_workers=has_workers) as advance:
            saved = put_together(
                described,
                force=given["force"],
                threads=given["threads"],
                progress=advance,
                on=on,
                task_size=given["task_size"],
            )
    if given["as_json"]:
        show_document(_document_gathering(path, out, described, saved))
    elif not quiet:
        show_lines(_summarize_gathering(path, out, described, saved))
    if given["dry_run"]:
        # If the plan cannot be carried out, it is shown before the error.
        described.outcome.refuse(force=given["force"])


def _list_notes(described: Gathering) -> list[str]:
    return [*described.plan.source.header.notes, *described.plan.notes]


def _summarize_gathering(
    path: str, out: str, described: Gathering, saved: Saved | None
) -> list[list[Cell]]:
    plan, outcome = described.plan, described.outcome
    tensors = pluralize(len(plan.items), "tensor")
    size = format_size(sum(item.info.nbytes for item in plan.items))
    ranks = pluralize(described.gathered.manifest.grid.ranks, "rank")
    lines = [
        [Cell(f"{printable(path)} -> {printable(out)} ({plan.format})", "bold")],
        [Cell(f"{tensors} from {ranks}, {size}; the file takes {format_size(outcome.nbytes)}")],
    ]
    if outcome.carried:
        lines.append([Cell(describe_other_files(outcome.carried))])
    if saved is None:
        return [*lines, [Cell("nothing was written")]]
    lines.append([Cell("all shards match the SHA-256 in the manifest")])
    return [*lines, *list_workers(saved), *list_costs(saved.nbytes)]


def _document_gathering(
    path: str, out: str, described: Gathering, saved: Saved | None
) -> dict[str, Any]:
    """Return the result as JSON, according to `schemas/shard.json` in the package."""
    plan, outcome = described.plan, described.outcome
    return {
        "input": path,
        "output": out,
        "format": plan.format,
        "ranks": described.gathered.manifest.grid.ranks,
        "tensors": len(plan.items),
        "files": [{"name": name, "bytes": layout.nbytes} for name, layout in outcome.parts.items()],
        "bytes": outcome.nbytes,
        "written": saved is not None,
        **document_times(saved, saved.nbytes if saved else 0),
        "notes": _list_notes(described),
        **document_workers(saved),
    }


# The shards as text and as JSON.

# The kinds of sharding, and the words for a count of tensors of each kind.
_KINDS = {"cut": "split", "replicate": "replicated", "whole": "on one rank"}


@dataclass(frozen=True, slots=True)
class _Share:
    """A tensor and its shards: the strategy, and the shape of each rank's shard.

    The shape is None for a rank that does not have the tensor. `held` is the sum of their bytes.
    """

    name: str
    shape: tuple[int, ...]
    encoding: str
    bytes: int
    strategy: str
    ranks: tuple[tuple[int, ...] | None, ...]
    held: int = field(metadata=NOT_DOCUMENTED)


def _shares(plan: ShardPlan) -> dict[str, _Share]:
    known: dict[tuple[object, ...], _Share] = {}
    shares: dict[str, _Share] = {}
    for name, sharding in plan.shardings.items():
        info = plan.source.header.tensors[name]
        # All layers are cut in the same way, so the shards of equal tensors are computed once.
        key = info.shape, info.encoding.name, sharding
        if key not in known:
            known[key] = _share(info, sharding)
        shares[name] = replace(known[key], name=name)
    return shares


def _share(info: TensorInfo, sharding: Sharding) -> _Share:
    shapes = tuple(sharding.shape(info.shape, rank) for rank in range(len(sharding.parts)))
    parts = (info._replace(shape=shape) for shape in shapes if shape is not None)
    held = sum(part.nbytes for part in parts)
    encoding = info.encoding.name
    return _Share(
        info.name, info.shape, encoding, info.nbytes, strategy_name(sharding), shapes, held
    )


def share_rows(plan: ShardPlan) -> Iterator[Sequence[Cell]]:
    """Yield the rows that show the tree of a checkpoint and how each tensor is cut."""
    shares = _shares(plan)
    root = build_tree([*shares, *plan.tied])
    for line in outline(root, shares, _look):
        yield _row(line, plan)


def _look(share: _Share) -> tuple[object, int, int]:
    return (share.shape, share.encoding, share.strategy, share.ranks), 1, share.bytes


def _row(line: OutlineLine[_Share], plan: ShardPlan) -> Sequence[Cell]:
    size = Cell(format_size(line.sizes[0]), "dim", right=True)
    share = line.entry
    if share is not None:
        # A narrow terminal leaves out the type, which does not change, and shortens the strategy.
        shape, kind = make_shape_cells(share.shape, share.encoding, "", line.times)
        strategy = Cell(share.strategy, "yellow", short=shorten_strategy(share.strategy))
        held = rank_shapes(share.shape, share.ranks)
        return Cell(line.text), shape, kind, size, strategy, held
    if line.name is not None:
        return Cell(f"{line.text} = {plan.tied[line.name]}"), Cell(""), Cell("tied", "cyan")
    return Cell(line.text, "bold"), line.below, Cell(""), size


def summary(
    path: str, out: str, plan: ShardPlan, outcome: Outcome, saved: Saved | None
) -> list[list[Cell]]:
    """Return the lines that describe the shards; `saved` is None if nothing was written."""
    title = f"{printable(path)} -> {printable(out)} ({plan.format}, {plan.grid})"
    lines = [[Cell(title, "bold")], *([Cell(text)] for text in _summarize_plan(plan, outcome))]
    if outcome.carried:
        where = " in each directory" if plan.layout == "ranks" and plan.grid.ranks > 1 else ""
        names = {name.rpartition("/")[2] for name in outcome.carried}
        lines.append([Cell(describe_other_files(names, where))])
    if saved is None:
        return [*lines, [Cell("nothing was written")]]
    return [*lines, *_summarize_run(saved)]


def _summarize_run(saved: Saved) -> Iterator[list[Cell]]:
    yield from resumption(saved)
    yield from list_workers(saved)
    yield from list_costs(saved.written_bytes)


def _summarize_plan(plan: ShardPlan, outcome: Outcome) -> Iterator[str]:
    amounts = _amounts(plan, outcome)
    kinds = Counter(map(_kind, plan.shardings.values()))
    strategies = ", ".join(
        f"{kinds[kind]:,} {text}" for kind, text in _KINDS.items() if kinds[kind]
    )
    counts = (
        f"{pluralize(len(plan.shardings), 'tensor')}, {format_size(amounts.whole)}: {strategies}"
    )
    more = {"copies add": amounts.replicated, "padding adds": amounts.padding}
    yield "; ".join(
        [counts, *(f"{what} {format_size(nbytes)}" for what, nbytes in more.items() if nbytes)]
    )
    files = pluralize(len(outcome.parts), "file")
    size = format_size(outcome.nbytes)
    yield f"{files}, {size} in total" if len(outcome.parts) > 1 else f"{files} of {size}"
    yield from _files(plan, outcome)


def _kind(sharding: Sharding) -> str:
    """Return `cut`, `replicate` (on several ranks) or `whole` (on a single rank)."""
    if any(sharding.parts):
        return "cut"
    return "replicate" if sum(part is not None for part in sharding.parts) > 1 else "whole"


def _files(plan: ShardPlan, outcome: Outcome) -> Iterator[str]:
    """Yield a line for consecutive ranks whose files have the same tensor count and size."""
    files = zip(outcome.parts.items(), plan.ranks, strict=True)
    known = [(rank, name, len(shards), layout.nbytes)
             for rank, ((name, layout), shards) in enumerate(files)]  # fmt: skip
    for (count, nbytes), alike in groupby(known, key=lambda each: each[2:]):
        ranks = [(rank, name) for rank, name, _, _ in alike]
        first, name = ranks[0]
        each = " each" if len(ranks) > 1 else ""
        if len(ranks) > 1:
            name = name.replace(f"rank-{first}", f"rank-[{first}-{ranks[-1][0]}]", 1)
        yield f"  {name}: {pluralize(count, 'tensor')}, {format_size(nbytes)}{each}"


class _Amounts(NamedTuple):
    """Bytes of tensors in the input and on all ranks, of their padding, and of copies.

    If several ranks have the same values, all but one of them have copies.
    """

    whole: int
    ranks: int
    padding: int
    replicated: int


def _amounts(plan: ShardPlan, outcome: Outcome) -> _Amounts:
    shares = _shares(plan).values()
    whole = sum(share.bytes for share in shares)
    held = sum(share.held for share in shares)
    return _Amounts(whole, outcome.tensor_bytes, outcome.tensor_bytes - held, held - whole)


def document(
    path: str, out: str, plan: ShardPlan, outcome: Outcome, saved: Saved | None
) -> dict[str, Any]:
    """Return the shards as JSON, according to `schemas/shard.json` in the package."""
    files = zip(outcome.parts.items(), plan.ranks, strict=True)
    return {
        "input": path,
        "output": out,
        "format": plan.format,
        "layout": plan.layout,
        "grid": plan.grid,
        "files": [
            {"name": name, "rank": rank, "tensors": len(shards), "bytes": layout.nbytes}
            for rank, ((name, layout), shards) in enumerate(files)
        ],
        "carried": sorted(outcome.carried),
        "bytes": outcome.nbytes,
        "tensor_bytes": _amounts(plan, outcome),
        "written": saved is not None,
        **document_times(saved, saved.written_bytes if saved else 0),
        "kept_bytes": saved.kept_bytes if saved else None,
        "started_over": saved.started_over or None if saved else None,
        "notes": list_notes(plan),
        "tied": plan.tied,
        "tensors": _shares(plan).values(),
        **document_workers(saved),
    }
