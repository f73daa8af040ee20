"""A block type takes a codec, a name and a row: then tensors are converted to it and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from extended_package import Line

if TYPE_CHECKING:
    from pathlib import Path

    from extended_package import ExtendedPackage

# 32 numbers as bytes and one scale of float32.
MODULE = '''
"""W8: 32 values as bytes and one scale."""

import numpy as np

from weightctl.codecs.base import BlockCodec


def _encode(x, importance, block):
    scale = np.abs(x).max(axis=2) / np.float32(127)
    block["scale"] = scale
    block["q"] = np.rint(x / np.where(scale > 0, scale, 1)[..., None])


def _decode(block, out):
    np.multiply(block["q"], block["scale"][..., None], out=out, dtype=np.float32)


W8 = BlockCodec(np.dtype([("scale", "<f4"), ("q", "i1", 32)]), 32, _encode, _decode)
'''
ROW = (
    '    Encoding("W8", 32, 36, "I32B", {"gguf": 190}, codec=_CODECS + "w8:W8", file_type=190,'
    ' scales=(BlockScale("scale", 0, "f32", is_positive=True),)),'
)
LINES = {
    "dtype/encodings.py": [Line(ROW, before='Encoding("Q1_0", 128, 18, "H16B", {"gguf": 41},')],
    "dtype/types.py": [Line('    W8 = "W8"', before='    Q1_0 = "Q1_0"')],
}
PROGRAM = """
import sys
import numpy as np
from weightctl import QuantizationEncoding, open_weights

blocks, numbers, source = map(open_weights, sys.argv[1:])
name = "model.layers.0.mlp.up_proj.weight"
stored = blocks["blk.0.ffn_up.weight"].data()
assert stored.quantization_encoding is QuantizationEncoding.W8
expected = np.asarray(source[name].data().astype("float32").to_numpy())
found = numbers[name].data().to_numpy()
assert np.array_equal(stored.astype("float32").to_numpy(), found)
assert 0 < np.abs(found - expected).max() <= np.abs(expected).max() / 254 * 1.001
"""


def test_a_block_type_is_a_codec_a_name_and_a_row(
    extended: ExtendedPackage, tiny_llama: Path, tmp_path: Path
) -> None:
    assert extended.follow("a codec", "w8", {"codecs/w8.py": MODULE}, LINES) == 2

    blocks, numbers = tmp_path / "blocks.gguf", tmp_path / "numbers"
    extended.command("convert", tiny_llama, blocks, "--quant", "w8")
    listed = json.loads(extended.command("ls", blocks, "--json"))
    assert set(listed["totals"]["bytes_by_encoding"]) == {"W8", "F32"}
    extended.command("convert", blocks, f"{numbers}/", "--dtype", "f32")
    extended.run("-c", PROGRAM, blocks, numbers, tiny_llama)

    extended.command("convert", tiny_llama, tmp_path / "one.gguf", "--tensor-type", "ffn_up=w8")
    assert extended.command("ls", tmp_path / "one.gguf", "--flat").count("W8") == 3
    assert extended.command("verify", blocks, "--check", "structure", "--check", "finite")
