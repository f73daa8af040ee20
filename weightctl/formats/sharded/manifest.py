"""The manifest of a sharded checkpoint as JSON: writing, and reading of untrusted files."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError
from weightctl.formats.open.collection import without_collection
from weightctl.formats.sharded.detection import MARK
from weightctl.formats.sharded.stated import parse_manifest
from weightctl.storage.files import open_reader
from weightctl.text.untyped import is_object
from weightctl.weights.json_file import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.formats.sharded.record import Manifest, Shard, SourceShard
    from weightctl.split import Part
    from weightctl.weights.info import TensorInfo

__all__ = ["manifest_bytes", "read_manifest"]

VERSION = 1
_MOST = 1 << 30
_JOINT = ",\n"
_HINT = "create it again with `weightctl shard`; it cannot be edited by hand"


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return a manifest as JSON, one tensor per line; `read_manifest` returns the same manifest."""
    files, header = manifest.source
    grid = manifest.grid
    head = {
        MARK: VERSION,
        "layout": manifest.layout,
        "format": manifest.format,
        "grid": {"tp": grid.tp, "ep": grid.ep, "pp": grid.pp},
        "source": {
            "files": [{"name": n, "size": size, "modified": at} for n, size, at in files],
            "header": header,
        },
        "aliases": dict(manifest.aliases),
    }
    tensors = (
        {"name": name, **_describe_tensor(info), "strategy": manifest.shardings[name].strategy}
        for name, info in manifest.tensors.items()
    )
    ranks = (
        f'{{"path": {json.dumps(file.path)}, "tensors": {_lines(map(_shard, file.shards))}}}'
        for file in manifest.files
    )
    parts = (
        json.dumps(head)[:-1],
        f'"tensors": {_lines(tensors)}',
        f'"ranks": [\n{_JOINT.join(ranks)}\n]}}\n',
    )
    return _JOINT.join(parts).encode("ascii")


def _lines(entries: Iterable[Any]) -> str:
    return f"[\n{_JOINT.join(map(json.dumps, entries))}\n]"


def _describe_tensor(info: TensorInfo) -> dict[str, Any]:
    # No format can store an encoding that is not in the table.
    return {"shape": list(info.shape), "encoding": info.encoding.name}


def _shard(shard: Shard) -> dict[str, Any]:
    return {
        "name": shard.info.name,
        **_describe_tensor(shard.info),
        "strategy": shard.strategy,
        "pieces": [_piece(piece) for piece in shard.pieces],
        "sha256": shard.sha256,
    }


def _piece(piece: SourceShard) -> dict[str, Any]:
    return {"source": piece.source, "cuts": _cuts(piece.part)}


def _cuts(part: Part) -> list[dict[str, Any]]:
    return [{"axis": cut.axis, "ranges": [list(each) for each in cut.ranges]} for cut in part]


def read_manifest(path: str) -> Manifest:
    """Read a manifest; check that it is consistent and that no part of a tensor is missing.

    In the manifest of an unfinished set, `sha256` is empty. Raises `FormatError` if the file is not
    a manifest, or is invalid.
    """
    with without_collection():
        document = _document(path)
        version = document.get(MARK) if is_object(document) else None
        if type(version) is not int:
            message = "the file is not a manifest of a sharded checkpoint"
            raise FormatError(path, None, message, hint=_HINT)
        if version != VERSION:
            raise FormatError(
                path,
                None,
                f"the manifest has version {version}; this weightctl reads version {VERSION}",
                hint="use a newer version of weightctl" if version > VERSION else _HINT,
            )
        try:
            return parse_manifest(document)
        except ValueError as error:
            raise FormatError(path, None, str(error), hint=_HINT) from error


def _document(path: str) -> Any:
    try:
        return read_json(open_reader(path), _MOST, _unique)
    except FormatError as error:
        raise FormatError(path, error.offset, error.reason, hint=error.hint or _HINT) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} appears twice in one JSON object")
    return made
