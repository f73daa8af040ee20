"""The manifest of a sharded checkpoint as JSON: writing, and reading of untrusted files."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError
from weightctl.formats.sharded.manifest_json import parse_manifest
from weightctl.storage.files import open_reader
from weightctl.system.processes import without_collection
from weightctl.text.untyped import is_object
from weightctl.weights.json_file import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from weightctl.formats.sharded.records import Manifest, Shard
    from weightctl.split import Part
    from weightctl.weights.info import TensorInfo

# The first key, which distinguishes our manifests from other files named manifest.json.
_MARK = "weightctl_shards"
VERSION = 1
_MOST = 1 << 30
_JOINT = ",\n"
_HINT = "create it again with `weightctl shard`; it cannot be edited by hand"


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return a manifest as JSON, one tensor per line; `read_manifest` returns the same manifest."""
    return b"".join(_format_manifest(manifest))


def _format_manifest(manifest: Manifest) -> Iterator[bytes]:
    """Yield the parts of what `manifest_bytes` returns; together they can be hundreds of MB."""
    files, header = manifest.source
    grid = manifest.grid
    head = {
        _MARK: VERSION,
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
        f"{{{_format_tensor(info)}, {_format_strategy(manifest.shardings[name].strategy)}}}"
        for name, info in manifest.tensors.items()
    )
    yield f'{json.dumps(head)[:-1]},\n"tensors": {_lines(tensors)},\n"ranks": [\n'.encode("ascii")
    for number, file in enumerate(manifest.files):
        joint = _JOINT if number else ""
        shards = _lines(map(_format_shard, file.shards))
        yield f'{joint}{{"path": {json.dumps(file.path)}, "tensors": {shards}}}'.encode("ascii")
    yield b"\n]}\n"


def _lines(entries: Iterable[str]) -> str:
    return f"[\n{_JOINT.join(entries)}\n]"


# A line is put together from its parts, of which few are different: a tenth of the time.
def _format_shard(shard: Shard) -> str:
    pieces = ", ".join(
        [f'{{"source": {json.dumps(name)}, {_format_cuts(part)}}}' for name, part in shard.pieces]
    )
    return (
        f"{{{_format_tensor(shard.info)}, {_format_strategy(shard.strategy)}, "
        f'"pieces": [{pieces}], "sha256": "{shard.sha256}"}}'
    )


def _format_tensor(info: TensorInfo) -> str:
    # No format can store an encoding that is not in the table.
    return f'"name": {json.dumps(info.name)}, {_format_type(info.shape, info.encoding.name)}'


@lru_cache(maxsize=1024)
def _format_type(shape: tuple[int, ...], encoding: str) -> str:
    return f'"shape": {json.dumps(shape)}, "encoding": {json.dumps(encoding)}'


@lru_cache(maxsize=1024)
def _format_strategy(strategy: str) -> str:
    return f'"strategy": {json.dumps(strategy)}'


@lru_cache(maxsize=1024)
def _format_cuts(part: Part) -> str:
    cuts = [{"axis": cut.axis, "ranges": cut.ranges} for cut in part]
    return f'"cuts": {json.dumps(cuts)}'


def read_manifest(path: str) -> Manifest:
    """Read a manifest; check that it is consistent and that no part of a tensor is missing.

    In the manifest of an unfinished set, `sha256` is empty. Raises `FormatError` if the file is not
    a manifest, or is invalid.
    """
    with without_collection():
        document = _document(path)
        version = document.get(_MARK) if is_object(document) else None
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
