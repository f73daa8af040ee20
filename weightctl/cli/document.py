"""Describes a checkpoint as JSON, according to `schemas/ls.json` in the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.cli.details import read_details
from weightctl.cli.listing import alignment
from weightctl.cli.splits import strategy_name
from weightctl.text.untyped import is_sequence
from weightctl.weights.metadata import as_json
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.cli.contents import Contents
    from weightctl.weights.info import Header, Leaf
    from weightctl.weights.metadata import MetadataValue

# An array with more than _LONG elements is abbreviated to the first _FIRST.
_LONG = 128
_FIRST = 8


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
    adapter, details = contents.adapter, read_details(contents)
    described = value_document if whole_metadata else _abbreviate_value
    return {
        "path": path,
        "format": header.format,
        "name": name or None,
        "architecture": architecture or None,
        "quantization": details.quantization,
        "context_length": details.context_length,
        "license": details.license,
        "files": list(header.files),
        "file_bytes": details.file_bytes,
        "alignment": header.alignment,
        "big_endian": header.big_endian,
        "notes": list(header.notes),
        "grid": None if contents.grid is None else contents.grid._asdict(),
        "totals": _totals(contents),
        "tensors": [_tensor(contents, each, digests) for each in names if each in contents.tensors],
        "tied": dict(contents.aliases),
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
                "shape": list(weight.shape),
                "scheme": weight.label,
                "bits_per_weight": weight.bits,
                "parts": list(weight.tensors),
            }
            for weight in contents.quantized.values()
        ],
        "adapter": adapter
        and {
            "ranks": list(adapter.ranks),
            "matrices": adapter.matrices,
            "base": adapter.base or None,
            "alpha": adapter.alpha,
        },
        "mtp": _mtp(contents),
        "metadata": {key: described(value) for key, value in header.metadata.items()},
    }


def _mtp(contents: Contents) -> dict[str, Any] | None:
    """Return the layers for multi-token prediction, None if there are none and none is stated."""
    mtp = contents.mtp
    if not mtp.layers and not mtp.stated:
        return None
    return {
        "layers": mtp.layers,
        "stated_layers": mtp.stated,
        "tensors": list(mtp.tensors),
        "parameters": mtp.parameters,
        "bytes": mtp.nbytes,
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
    return len(content) > _LONG or any(_is_long(each) for each in content if is_sequence(each))


def _first(content: Sequence[Any]) -> list[Any]:
    return [_first(each) if is_sequence(each) else each for each in content[:_FIRST]]


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
        "shape": list(info.shape),
        "encoding": info.encoding.name,
        "bytes": extent.nbytes,
        "role": "part" if name in contents.part_of else contents.buffers.get(name, "weight"),
        "file": header.files[extent.file],
        "offset": extent.offset,
        "alignment": alignment(extent.offset),
        "sha256": digests[name] if digests is not None else None,
        "sharding": _sharding(header, name),
    }  # fmt: skip


def _sharding(header: Header, name: str) -> dict[str, Any] | None:
    sharding = header.shardings.get(name)
    if sharding is None:
        return None
    whole, ranks = header.tensors[name].shape, range(len(sharding.parts))
    shapes = [sharding.shape(whole, rank) for rank in ranks]
    return {"strategy": strategy_name(sharding), "ranks": shapes}
