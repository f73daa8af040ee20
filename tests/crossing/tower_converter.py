"""llama.cpp's converter with `--mmproj`, and the comparison of its files with ours."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np

from lazy import load_file, save_file
from real_files import fetch
from weightctl import open_weights
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# A key that states what no other value could be, and llama.cpp's default.
_SUPERFLUOUS = {"general.quantization_version", "clip.vision.spatial_merge_size"}
# Keys that the converter computes from the name of the directory.
_OF_CARDS = {"general.name", "general.basename", "general.size_label", "general.finetune"}
# Converts with `--mmproj` each directory that is named before the path of its output.
_PROGRAM = """
import runpy, sys
program, *pairs = sys.argv[1:]
sys.path.insert(0, program.rpartition("/")[0])
for model, out in zip(pairs[::2], pairs[1::2]):
    sys.argv = [program, model, "--mmproj", "--outfile", out]
    runpy.run_path(program, run_name="__main__")
"""


def convert_towers(pairs: Sequence[tuple[Path, Path]]) -> None:
    """Write the mmproj files of directories."""
    program = fetch("converter") / "convert_hf_to_gguf.py"
    arguments = [str(each) for pair in pairs for each in pair]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def as_intern(directory: Path) -> None:
    """Give a checkpoint of InternVL the names by which the converter recognizes it."""
    path = directory / "model.safetensors"
    renamed = {f"model.{name}": tensor for name, tensor in load_file(path).items()}
    save_file(renamed, path, {"format": "pt"})
    state_encoder(directory, "InternVisionModel")


def state_encoder(directory: Path, name: str) -> None:
    """State the class of an image encoder, as the published checkpoints do."""
    document = json.loads((directory / "config.json").read_text())
    document["vision_config"]["architectures"] = [name]
    (directory / "config.json").write_text(json.dumps(document))


def find_differing(theirs: Path, ours: Path, *aside: str) -> set[str]:
    """Return the names of tensors that differ in shape or type.

    The metadata except the keys `aside`, and the values of tensors of both files, must be equal.
    """
    weights = open_weights(theirs), open_weights(ours)
    left, right = map(header_of, weights)
    assert left.metadata.keys() ^ right.metadata.keys() <= _SUPERFLUOUS | {*aside}
    for key in left.metadata.keys() & right.metadata.keys() - _OF_CARDS - {*aside}:
        assert left.metadata[key] == right.metadata[key], key
    tensors = [dict(each.items()) for each in weights]
    for name in tensors[0].keys() & tensors[1].keys():
        pair = (np.asarray(each[name].data().astype("float32")) for each in tensors)
        np.testing.assert_allclose(*pair, atol=1e-6, rtol=0)
    names = {*left.tensors, *right.tensors}
    return {name for name in names if left.tensors.get(name) != right.tensors.get(name)}
