"""A format takes a module and a line of the table: then it is listed, read and written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from extended_package import Line

if TYPE_CHECKING:
    from pathlib import Path

    from extended_package import ExtendedPackage

# A length, a JSON object of tensors and metadata, and the bytes of the tensors one after another.
MODULE = '''
"""tiny: a JSON object, then the tensors' bytes."""

import json

from weightctl.dtype import ENCODINGS
from weightctl.formats.base import Layout
from weightctl.weights.info import Extent, Header, TensorInfo
from weightctl.weights.metadata import from_json, to_json


def sniff(file):
    return file.read(0, 4) == b"TINY"


def read(file):
    length = int(file.read(4, 8))
    document = json.loads(file.read(12, length))
    infos = [
        TensorInfo(name, tuple(shape), ENCODINGS[encoding])
        for name, shape, encoding in document["tensors"]
    ]
    extents, offset = {}, 12 + length
    for info in infos:
        extents[info.name] = Extent(0, offset, info.nbytes)
        offset += info.nbytes
    return Header(
        format="tiny", files=(file.path,), tensors={info.name: info for info in infos},
        extents=extents, metadata=from_json(document["metadata"]), aliases={}, alignment=1,
    )


def unfit(tensors, metadata):
    return []


def layout(tensors, metadata, part=None):
    described = [(info.name, info.shape, info.encoding.name) for info in tensors]
    document = json.dumps({"tensors": described, "metadata": to_json(metadata)}).encode()
    header = b"TINY%08d%s" % (len(document), document)
    offsets, offset = [], len(header)
    for info in tensors:
        offsets.append(offset)
        offset += info.nbytes
    return Layout(header, tuple(tensors), tuple(offsets), offset)
'''
LINE = Line(
    '    "tiny": FormatLine("weightctl.formats.tiny", (".tiny",)),', before='"pytorch": FormatLine('
)


def test_a_format_is_a_module_and_a_line(
    extended: ExtendedPackage, tiny_llama: Path, tmp_path: Path
) -> None:
    modules, lines = {"formats/tiny.py": MODULE}, {"formats/__init__.py": [LINE]}
    assert extended.follow("a format", "tiny", modules, lines) == 1

    source, tiny = tiny_llama / "model.safetensors", tmp_path / "m.tiny"
    back = tmp_path / "back.safetensors"
    extended.command("convert", source, tiny)
    assert tiny.read_bytes().startswith(b"TINY")
    listed = json.loads(extended.command("ls", tiny, "--json"))
    assert listed["format"] == "tiny"
    assert "tiny" in extended.command("convert", "--help")

    extended.command("convert", tiny, back)
    extended.command("diff", "--hash", source, back)
    assert extended.command("verify", tiny, "--check", "structure")
