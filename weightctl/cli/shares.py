"""Describes the shards of a checkpoint as text and as JSON."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.cli.costs import (
    document_network,
    document_times,
    document_workers,
    list_costs,
    list_workers,
)
from weightctl.cli.outline import format_tensor_count, outline
from weightctl.cli.render import Cell, make_shape_cells
from weightctl.cli.report import describe_other_files, resumption
from weightctl.cli.splits import brief, grid_text, rank_shapes, strategy_name
from weightctl.text.sizes import format_size
from weightctl.text.wording import pluralize, printable
from weightctl.weights.nodes import build_tree
from weightctl.write.shard import list_notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.cli.outline import OutlineLine
    from weightctl.sharding.plan import ShardPlan
    from weightctl.split import Sharding
    from weightctl.weights.info import TensorInfo
    from weightctl.write.outcome import Outcome
    from weightctl.write.save import Saved

# The kinds of sharding, and the words for a count of tensors of each kind.
_KINDS = {"cut": "split", "replicate": "replicated", "whole": "on one rank"}


class _Share(NamedTuple):
    """A tensor and its shards: the strategy, the shape of each rank's shard, and their bytes.

    The shape is None for a rank that does not have the tensor. `nbytes` is the sum over ranks.
    """

    info: TensorInfo
    strategy: str
    shapes: tuple[tuple[int, ...] | None, ...]
    nbytes: int


def _shares(plan: ShardPlan) -> dict[str, _Share]:
    known: dict[tuple[object, ...], _Share] = {}
    shares: dict[str, _Share] = {}
    for name, sharding in plan.shardings.items():
        info = plan.source.header.tensors[name]
        # All layers are cut in the same way, so the shards of equal tensors are computed once.
        key = info.shape, info.encoding.name, sharding
        if key not in known:
            known[key] = _share(info, sharding)
        shares[name] = known[key]._replace(info=info)
    return shares


def _share(info: TensorInfo, sharding: Sharding) -> _Share:
    shapes = tuple(sharding.shape(info.shape, rank) for rank in range(len(sharding.parts)))
    parts = (info._replace(shape=shape) for shape in shapes if shape is not None)
    return _Share(info, strategy_name(sharding), shapes, sum(part.nbytes for part in parts))


def share_rows(plan: ShardPlan) -> Iterator[Sequence[Cell]]:
    """Yield the rows that show the tree of a checkpoint and how each tensor is cut."""
    shares = _shares(plan)
    root = build_tree([*shares, *plan.tied])
    for line in outline(root, shares, _look):
        yield _row(line, plan)


def _look(share: _Share) -> tuple[object, int, int]:
    info = share.info
    return (info.shape, info.encoding.name, share.strategy, share.shapes), 1, info.nbytes


def _row(line: OutlineLine[_Share], plan: ShardPlan) -> Sequence[Cell]:
    times = f"  x{line.times}" if line.times > 1 else ""
    text = f"{'  ' * line.depth}{line.label}{times}"
    size = Cell(format_size(line.nbytes), "dim", right=True)
    share = line.entry
    if share is not None:
        # A narrow terminal leaves out the type, which does not change, and shortens the strategy.
        shape, kind = make_shape_cells(share.info.shape, share.info.encoding.name, "", line.times)
        strategy = Cell(share.strategy, "yellow", short=brief(share.strategy))
        held = rank_shapes(share.info.shape, share.shapes)
        return Cell(text), shape, kind, size, strategy, held
    if line.name is not None:
        return Cell(f"{text} = {plan.tied[line.name]}"), Cell(""), Cell("tied", "cyan")
    below = Cell(format_tensor_count(line.tensors, line.times), "dim", right=True)
    return Cell(text, "bold"), below, Cell(""), size


def summary(
    path: str, out: str, plan: ShardPlan, outcome: Outcome, saved: Saved | None
) -> list[list[Cell]]:
    """Return the lines that describe the shards; `saved` is None if nothing was written."""
    title = f"{printable(path)} -> {printable(out)} ({plan.format}, {grid_text(plan.grid)})"
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
    whole = sum(share.info.nbytes for share in shares)
    held = sum(share.nbytes for share in shares)
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
        "grid": plan.grid._asdict(),
        "files": [
            {"name": name, "rank": rank, "tensors": len(shards), "bytes": layout.nbytes}
            for rank, ((name, layout), shards) in enumerate(files)
        ],
        "carried": sorted(outcome.carried),
        "bytes": outcome.nbytes,
        "tensor_bytes": _amounts(plan, outcome)._asdict(),
        "written": saved is not None,
        **document_times(saved, saved.written_bytes if saved else 0),
        "kept_bytes": saved.kept_bytes if saved else None,
        "started_over": saved.started_over or None if saved else None,
        "notes": list_notes(plan),
        "tied": dict(plan.tied),
        "tensors": [
            {
                "name": name,
                "shape": list(share.info.shape),
                "encoding": share.info.encoding.name,
                "bytes": share.info.nbytes,
                "strategy": share.strategy,
                "ranks": [None if shape is None else list(shape) for shape in share.shapes],
            }
            for name, share in _shares(plan).items()
        ],
        **document_workers(saved),
        **document_network(),
    }
