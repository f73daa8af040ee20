"""Describes a checkpoint: its summary, its tree, and everything as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.cli.outline import outline
from weightctl.cli.render import split_cells, strategy_name
from weightctl.inspection.contents import Contents, find_alignment, kind, label
from weightctl.inspection.details import read_details
from weightctl.storage.files import name_model
from weightctl.text.columns import Cell, make_shape_cells, shorten_text
from weightctl.text.sizes import format_count, format_size
from weightctl.text.untyped import is_sequence
from weightctl.text.wording import pluralize, printable
from weightctl.weights.info import Leaf, TensorInfo
from weightctl.weights.metadata import as_json
from weightctl.weights.nodes import build_tree, walk
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightctl.cli.outline import OutlineLine
    from weightctl.inspection.contents import MtpContents
    from weightctl.schemes.matching import Entry
    from weightctl.weights.info import Header
    from weightctl.weights.metadata import MetadataValue
    from weightctl.weights.nodes import TreeNode

# The label of a tensor or value without a name, which is the only content of its file.
_UNNAMED = "(unnamed)"
_LOOK = 28
# The values of a branch are folded if they fill more lines than this.
_MOST_LINES = 40
# The key under which Lightning stores its version, and the keys of its own state.
_LIGHTNING = "pytorch-lightning_version"
_LIGHTNING_STATE = {"loops", "callbacks"}
_OMEGACONF = "omegaconf."


def summary(path: str, contents: Contents) -> list[list[Cell]]:
    """Return the lines of the summary: title, amounts, encodings and details."""
    title = [
        Cell(printable(name_model(path)), "bold"),
        Cell(f": {printable(contents.title(path))}"),
    ]
    lines = [title, [Cell(_amounts(contents))]]
    by_kind = contents.totals.by_kind
    if len(by_kind) > 1:
        total = sum(by_kind.values()) or 1
        shares = (
            f"{stored} {format_size(nbytes)} ({100 * nbytes / total:.1f} %)"
            for stored, nbytes in by_kind.items()
        )
        lines.append([Cell(", ".join(shares))])
    details = read_details(contents).describe(len(header_of(contents.weights).files))
    if details:
        lines.append([Cell(printable(details))])
    if text := _describe_mtp(contents.mtp):
        lines.append([Cell(text)])
    adapter = contents.adapter
    if adapter is not None:
        noun = "rank" if len(adapter.ranks) == 1 else "ranks"
        ranks = ", ".join(map(str, adapter.ranks))
        alpha = "" if adapter.alpha is None else f", alpha {adapter.alpha:g}"
        matrices = f"{adapter.matrices} {'matrix' if adapter.matrices == 1 else 'matrices'}"
        base = f", base model {adapter.base}" if adapter.base else ""
        text = f"LoRA adapter: {noun} {ranks}{alpha}, {matrices}{base}"
        lines.append([Cell(printable(text))])
    return lines


def _describe_mtp(mtp: MtpContents) -> str:
    """Return a line about layers for multi-token prediction, empty if there are none."""
    layers = pluralize(mtp.layers or mtp.stated_layers, "layer")
    if not mtp.layers:
        lost = f"MTP (multi-token prediction): the config states {layers}, but there are no tensors"
        return lost if mtp.stated_layers else ""
    return (
        f"MTP (multi-token prediction): {layers}, {pluralize(len(mtp.tensors), 'tensor')}, "
        f"{format_count(mtp.parameters)} parameters, {format_size(mtp.bytes)}"
    )


def _amounts(contents: Contents) -> str:
    totals, count = contents.totals, len(contents.entries)
    of = f" of {contents.count}" if count < contents.count else ""
    noun = "tensor" if contents.count == 1 else "tensors"
    stored = f" (stored as {len(contents.tensors)})" if contents.quantized else ""
    values = f", {pluralize(len(contents.leaves), 'value')}" if contents.leaves else ""
    bits = f", {totals.bits:.2f} bits per weight" if totals.bits is not None else ""
    return (
        f"{count}{of} {noun}{stored}{values}, {format_count(totals.parameters)} parameters, "
        f"{format_size(totals.nbytes)}{bits}"
    )


class FoldedValues(NamedTuple):
    """A branch of values that is shown on one line, with the number of its values."""

    values: int


if TYPE_CHECKING:
    Shown = Entry | Leaf | FoldedValues


def list_shown(contents: Contents, *, with_values: bool) -> dict[str, Shown]:
    """Map names to the entries, values and folded branches that the tree shows.

    If `with_values` is set, all values are shown. Otherwise, a branch without tensors is folded if
    its values fill many lines, if it is an OmegaConf object, or if it has the state of Lightning's
    training loop.
    """
    if with_values or not contents.leaves:
        return {**contents.entries, **contents.leaves}
    folded: dict[str, str] = {}
    counts: dict[str, int] = {}
    is_lightning = _LIGHTNING in contents.leaves

    def fold(node: TreeNode, path: str) -> None:
        for segment, below in node.children().items():
            name = f"{path}.{segment}" if path else segment
            names = list(walk(below))
            if not contents.leaves.keys() >= set(names):
                fold(below, name)
                continue
            leaf = contents.leaves.get(name)
            is_internal = is_lightning and name in _LIGHTNING_STATE
            is_internal |= leaf is not None and leaf.kind.startswith(_OMEGACONF)
            if len(names) > 1 and (is_internal or _count_lines(below, contents) > _MOST_LINES):
                folded.update(dict.fromkeys(names, name))
                counts[name] = len(names)
            elif len(names) > 1:
                fold(below, name)

    fold(contents.tree, "")
    shown: dict[str, Shown] = {**contents.entries}
    for name, leaf in contents.leaves.items():
        branch = folded.get(name)
        shown[branch or name] = FoldedValues(counts[branch]) if branch else leaf
    return shown


def _count_lines(node: TreeNode, contents: Contents) -> int:
    return sum(1 for _ in outline(node, contents.leaves, lambda leaf: (leaf, 0, 0)))


def tree_rows(
    contents: Contents, shown: Mapping[str, Shown], depth: int | None
) -> Iterator[Sequence[Cell]]:
    """Yield the rows that show the tree, at most `depth` levels of it, if given."""
    values = [name for name in shown if name not in contents.entries]
    tree = contents.tree
    if len(values) < len(contents.leaves):
        tree = build_tree((*contents.entries, *contents.aliases, *values))
    look, loosen = _look(contents)
    for line in outline(tree, shown, look, depth, loosen):
        yield _row(line, contents)


def _look(
    contents: Contents,
) -> tuple[Callable[[Shown], tuple[object, int, int]], Callable[[Shown], object]]:
    """Return the functions for `outline`; layers can differ in the quantization types of GGUF."""
    header = header_of(contents.weights)
    extents, shardings = header.extents, header.shardings

    def look(entry: Shown) -> tuple[object, int, int]:
        if isinstance(entry, TensorInfo):
            name, shape, encoding = entry
            return (shape, encoding.name, shardings.get(name)), 1, extents[name].nbytes
        if isinstance(entry, Leaf | FoldedValues):
            return entry, 0, 0
        cut = tuple(map(shardings.get, entry.tensors))
        return (entry.shape, kind(entry), cut), 1, entry.nbytes

    def loosen(entry: Shown) -> object:
        if isinstance(entry, TensorInfo) and entry.encoding.quantization is not None:
            return entry.shape, shardings.get(entry.name)
        return look(entry)[0]

    return look, loosen


def _row(line: OutlineLine[Shown], contents: Contents) -> Sequence[Cell]:
    text = line._replace(label=line.label or _UNNAMED).text
    size = Cell("/".join(map(format_size, line.sizes)) if line.tensors else "", "dim", right=True)
    entry = line.entry
    if isinstance(entry, FoldedValues):
        count = pluralize(entry.values, "value")
        text_below = f"{line.times} x {count}" if line.times > 1 else count
        return Cell(text), Cell(text_below, "dim", right=True)
    if isinstance(entry, Leaf):
        # An object shows its class, and the number of tensors that it has.
        looks = entry.look or (entry.kind if "." in entry.kind else "")
        stated = "object" if "." in entry.kind and not entry.look else entry.kind
        brief = shorten_text(printable(looks), _LOOK)
        return Cell(text), line.below, Cell(stated, "cyan"), size, Cell(looks, "dim", short=brief)
    if entry is not None:
        mark = Cell(contents.buffers.get(entry.name, ""), "dim")
        alike = (each for each in line.entries if not isinstance(each, Leaf | FoldedValues))
        types = dict.fromkeys(map(kind, alike))
        brief = "/".join(name for name, _ in types)
        cells = make_shape_cells(entry.shape, "/".join(map(label, types)), brief, line.times)
        # Scales are cut in the same way as the packed values.
        packed = entry.name if isinstance(entry, TensorInfo) else entry.tensors[0]
        return Cell(text), *cells, size, mark, *split_cells(header_of(contents.weights), packed)
    if line.name is not None:
        tied = f"{text} = {contents.aliases[line.name]}"
        return Cell(tied), Cell(""), Cell("tied", "cyan"), Cell("")
    return Cell(text, "bold"), line.below, Cell(""), size


# The checkpoint as JSON.

# An array with more than _LONG_ARRAY elements is abbreviated to the first _SHOWN_ELEMENTS.
_LONG_ARRAY = 128
_SHOWN_ELEMENTS = 8


def document(
    path: str,
    contents: Contents,
    names: Sequence[str],
    *,
    digests: Mapping[str, str] | None,
    whole_metadata: bool,
) -> dict[str, Any]:
    """Return everything that a listing shows, with the tensors in the order of `names`.

    `digests` are the SHA-256 of tensors, None if not computed. Long arrays in the metadata are
    abbreviated, unless `whole_metadata` is set.
    """
    header = header_of(contents.weights)
    name, architecture = contents.identity
    mtp, details = contents.mtp, read_details(contents)
    described = value_document if whole_metadata else _abbreviate_value
    return {
        "path": path,
        "format": header.format,
        "name": name or None,
        "architecture": architecture or None,
        "quantization": details.quantization,
        "context_length": details.context_length,
        "license": details.license,
        "files": header.files,
        "file_bytes": details.file_bytes,
        "alignment": header.alignment,
        "big_endian": header.big_endian,
        "notes": header.notes,
        "grid": contents.grid,
        "totals": _totals(contents),
        "tensors": [_tensor(contents, each, digests) for each in names if each in contents.tensors],
        "tied": contents.aliases,
        "values": [
            {
                "name": each,
                "kind": leaf.kind,
                "value": _value(header, each, leaf),
            }
            for each, leaf in contents.leaves.items()
        ],
        "logical": [
            {
                "name": weight.name,
                "shape": weight.shape,
                "scheme": weight.label,
                "bits_per_weight": weight.bits,
                "parts": weight.tensors,
            }
            for weight in contents.quantized.values()
        ],
        "adapter": contents.adapter,
        "mtp": mtp if mtp.layers or mtp.stated_layers else None,
        "metadata": {key: described(value) for key, value in header.metadata.items()},
    }


def _value(header: Header, name: str, leaf: Leaf) -> Any:
    if leaf.kind == "None":
        return None
    value = header.metadata.get(name)
    return (leaf.look or None) if value is None else as_json(value.content)


def value_document(value: MetadataValue) -> dict[str, Any]:
    """Return a metadata value and its type as a JSON object."""
    return {"type": value.type, "value": as_json(value.content)}


def _abbreviate_value(value: MetadataValue) -> dict[str, Any]:
    """Return a metadata value and its type; a long array as its length and first elements."""
    content = value.content
    if not is_sequence(content) or not _is_long(content):
        return value_document(value)
    return {"type": value.type, "count": len(content), "first": as_json(_first(content))}


def _is_long(content: Sequence[Any]) -> bool:
    return len(content) > _LONG_ARRAY or any(
        _is_long(each) for each in content if is_sequence(each)
    )


def _first(content: Sequence[Any]) -> list[Any]:
    return [_first(each) if is_sequence(each) else each for each in content[:_SHOWN_ELEMENTS]]


def _totals(contents: Contents) -> dict[str, Any]:
    totals = contents.totals
    by_encoding: dict[str, int] = {}
    for name, info in contents.tensors.items():
        nbytes = header_of(contents.weights).extents[name].nbytes
        by_encoding[info.encoding.name] = by_encoding.get(info.encoding.name, 0) + nbytes
    return {
        "tensors": len(contents.tensors),
        "parameters": totals.parameters,
        "bytes": sum(by_encoding.values()),
        "bits_per_weight": totals.bits,
        "bytes_by_encoding": dict(sorted(by_encoding.items(), key=lambda each: -each[1])),
    }


def _tensor(contents: Contents, name: str, digests: Mapping[str, str] | None) -> dict[str, Any]:
    header = header_of(contents.weights)
    info, extent = header.tensors[name], header.extents[name]
    return {
        "name": name,
        "shape": info.shape,
        "encoding": info.encoding.name,
        "bytes": extent.nbytes,
        "role": "part" if name in contents.part_of else contents.buffers.get(name, "weight"),
        "file": header.files[extent.file],
        "offset": extent.offset,
        "alignment": find_alignment(extent.offset),
        "sha256": digests[name] if digests is not None else None,
        "sharding": _sharding(header, name),
    }


def _sharding(header: Header, name: str) -> dict[str, Any] | None:
    sharding = header.shardings.get(name)
    if sharding is None:
        return None
    whole, ranks = header.tensors[name].shape, range(len(sharding.parts))
    shapes = [sharding.shape(whole, rank) for rank in ranks]
    return {"strategy": strategy_name(sharding), "ranks": shapes}
