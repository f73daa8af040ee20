"""A scheme takes a module and a line in the table: then it is listed, dequantized and cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from extended_package import Line

if TYPE_CHECKING:
    from pathlib import Path

    from extended_package import ExtendedPackage

MODULE = '''
"""Tiny: bytes, and float32 steps of their blocks."""

from weightctl.schemes import decoding
from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.scheme import LogicalWeight, NameEndings, Scheme


def infer(candidate):
    return LogicalWeight(candidate.numbers.shape, bits=8)


def decode(stored):
    grid = stored.grid(stored.shape, stored.scales.shape)
    values = decoding.Scaled(numbers=stored.plain(0), scales=stored.per_block(1, grid))
    return decoding.Decoding(stored.shape, values)


SCHEME = Scheme(
    label="Tiny {bits}-bit",
    names=(NameEndings(".tiny_steps", ".tiny", ".weight", ("I8",)),),
    infer=infer, decode=decode, cut=cut_upright,
)
'''
LINE = Line(
    '    "tiny": SchemeLine("weightctl.schemes.tiny:SCHEME", (".tiny_steps",)),',
    before='"gptq": SchemeLine("weightctl.schemes.gptq:SCHEME", (".scales",)),',
)
PROGRAM = """
import sys
import numpy as np
from weightctl import open_weights
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.sharding.stored import stored_weights
from weightctl.cli.contents import Contents

weights = open_weights(sys.argv[1])
entry = Contents(weights).entries["l.weight"]
assert (entry.label, entry.shape) == ("Tiny 8-bit", (4, 8))
values = dequantize_weights(weights, in_blocks=False)["l.weight"].data()
assert np.array_equal(np.from_dlpack(values), np.full((4, 8), 6, np.float32))
footprint = stored_weights(weights.source)["l.weight"]
assert (footprint.blocks, footprint.refusal) == ((1, 4), "")
"""


def test_a_scheme_is_a_module_and_a_line(extended: ExtendedPackage, tmp_path: Path) -> None:
    modules, lines = {"schemes/tiny.py": MODULE}, {"schemes/__init__.py": [LINE]}
    assert extended.follow("a scheme", "tiny", modules, lines) == 1

    tensors = {
        "l.tiny": torch.full((4, 8), 3, dtype=torch.int8),
        "l.tiny_steps": torch.full((4, 2), 2.0),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    extended.run("-c", PROGRAM, tmp_path / "m.safetensors")
