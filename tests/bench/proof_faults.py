"""How many faults of a quantized file a proof finds and locates, by type and by fault.

    python tests/bench/proof_faults.py [--draws 10] [TYPE ...]

Each file has one fault, in a random place of a random matrix of a llama of one layer:

- one bit of a code, and one bit of a scale, in the finished file;
- a row exchanged with another one, a row with 1 % of noise, and a merged LoRA adapter (rank 4, of
  2 % of the matrix), in BF16 before the quantization;
- two exchanged entries of the tokenizer.

A fault is found if the proof has a problem that names the matrix, and the row where there is one. A
number after a plus counts the faults for which a note names the matrix: it is `within the bound`.
There are as many files as DRAWS for codes and scales, fewer for faults that need a conversion, and
a third of them with a known importance matrix, where blocks are encoded again, as without one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from weightctl import convert, open_weights
from weightctl.codecs import can_encode, definition
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.verify import verify
from weightctl.verify.proof.codes import find_layout
from weightctl.verify.proof.tensors import can_judge
from weightctl.verify.proof.verdicts import ProofFigures, Verdict
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightctl.codecs.base import BlockCodec
    from weightctl.dtype import Encoding

    Array = NDArray[np.float32]

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
MODEL, IMPORTANCE = FIXTURES / "tiny-llama", FIXTURES / "imatrix" / "tiny-llama.gguf"
SCHEMES = (
    "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "MXFP8", "W8A16", "W4A16", "NVFP4A16", "NVFP4", "MXFP4",
    "GPTQ", "GPTQ-8bit", "AWQ", "MLX-4bit", "MLX-8bit", "MLX-mxfp4", "BNB-NF4", "BNB-INT8",
)  # fmt: skip
BLOCKS = [each.name for each in ENCODINGS.values() if each.dtype is None and can_encode(each)]
# Of the tensors of a weight in a scheme, those that are scales.
SCALES = ("weight_scale", "weight_scale_inv", "scales", "absmax", "SCB")
# Modules and their names in GGUF.
MATRICES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
# Fields of blocks without codes, for types whose layout is not known.
NO_CODES = {"scale", "scales", "exponent"}
# Faults, and for how many draws one is made: those before the quantization need a conversion.
FAULTS = {
    "code": 1, "scale": 1, "exchanged row": 3, "tuned row": 3, "merged LoRA": 3, "tokenizer": 10,
}  # fmt: skip


def cut_model(folder: Path) -> Path:
    """Write the first layer of the model, and return its directory."""
    out = folder / "source"
    shutil.copytree(MODEL, out)
    config = json.loads((out / "config.json").read_text()) | {"num_hidden_layers": 1}
    (out / "config.json").write_text(json.dumps(config))
    kept = {name: each for name, each in read(MODEL).items() if ".layers." not in name or
            ".layers.0." in name}  # fmt: skip
    convert(kept, out / "model.safetensors", dtype="bf16", force=True)
    return out


def read(path: Path) -> dict[str, Array]:
    tensors = open_weights(path).items()
    return {name: np.asarray(node.data().astype("f32")) for name, node in tensors}


def exchange(array: Array, row: int, random: np.random.Generator) -> None:
    other = (row + int(random.integers(1, len(array)))) % len(array)
    array[[row, other]] = array[[other, row]]


def tune(array: Array, row: int, random: np.random.Generator) -> None:
    noise = random.standard_normal(array.shape[1]).astype(np.float32)
    array[row] += 0.01 * noise * np.sqrt(np.mean(array[row] ** 2))


def merge(array: Array, row: int, random: np.random.Generator) -> None:
    del row
    made = random.standard_normal((len(array), 4)) @ random.standard_normal((4, array.shape[1]))
    array += (0.02 * np.linalg.norm(array) / np.linalg.norm(made) * made).astype(np.float32)


BEFORE = {"exchanged row": exchange, "tuned row": tune, "merged LoRA": merge}


class Kind(NamedTuple):
    """What is written: a type, with a matrix or without, and what the proof is given."""

    quant: str
    is_scheme: bool
    imatrix: Path | None = None
    known: Path | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"quant": self.quant, "imatrix": self.imatrix, "force": True}

    def __str__(self) -> str:
        if self.imatrix is None:
            return f"{self.quant}, directory" if self.is_scheme else self.quant
        return f"{self.quant}, {'known' if self.known else 'unknown'} matrix"


def list_kinds(names: list[str]) -> Iterator[Kind]:
    for name in BLOCKS:
        encoding = ENCODINGS[name]
        if names and name not in names:
            continue
        if not encoding.needs_importance:
            yield Kind(name, is_scheme=False)
        if encoding.takes_importance:
            yield Kind(name, False, IMPORTANCE, IMPORTANCE)
            yield Kind(name, False, IMPORTANCE)
    for name in SCHEMES:
        if not names or name in names:
            yield Kind(name, is_scheme=True)


class Bench:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._source = cut_model(folder)
        self._arrays = read(self._source)
        self._changed = folder / "changed"

    def _find_paths(self, kind: Kind) -> tuple[Path, Path]:
        suffix = "" if kind.is_scheme else ".gguf"
        return self._folder / f"base{suffix}", self._folder / f"out{suffix}"

    def write_base(self, kind: Kind) -> None:
        convert(self._source, self._find_paths(kind)[0], **kind.options)

    def count(self, kind: Kind, fault: str, draws: int) -> str:
        """Return how many of the faults are found, as text."""
        base, out = self._find_paths(kind)
        found = Counter[str]()
        for draw in range(draws):
            random = np.random.default_rng([draw, list(FAULTS).index(fault)])
            module = list(MATRICES)[int(random.integers(len(MATRICES)))]
            name = f"model.layers.0.{module}" if kind.is_scheme else f"blk.0.{MATRICES[module]}"
            if fault in {"code", "scale"}:
                row = flip(base, out, name, kind, random, is_scale=fault == "scale")
            else:
                row = self._change(fault, module, random)
                convert(self._changed, out, **kind.options)
            found[self._judge(kind, out, name, row, fault)] += 1
        noted = f" + {found['noted']}" if found["noted"] else ""
        return f"{found['found']}{noted} of {draws}"

    def _change(self, fault: str, module: str, random: np.random.Generator) -> int | None:
        """Write a changed source, and return the row, if there is one."""
        shutil.rmtree(self._changed, ignore_errors=True)
        shutil.copytree(self._source, self._changed)
        if fault == "tokenizer":
            path = self._changed / "tokenizer.json"
            document = json.loads(path.read_text())
            entries = document["model"]["vocab"]
            one, other = random.choice(sorted(entries)[8:], 2, replace=False).tolist()
            entries[one], entries[other] = entries[other], entries[one]
            path.write_text(json.dumps(document))
            return None
        name = f"model.layers.0.{module}.weight"
        arrays = self._arrays | {name: self._arrays[name].copy()}
        row = int(random.integers(len(arrays[name])))
        BEFORE[fault](arrays[name], row, random)
        convert(arrays, self._changed / "model.safetensors", dtype="bf16", force=True)
        return None if fault == "merged LoRA" else row

    def _judge(self, kind: Kind, out: Path, name: str, row: int | None, fault: str) -> str:
        is_token = fault == "tokenizer"
        report = verify(
            out,
            self._source,
            checks=["metadata" if is_token else "structure"],
            prove=True,
            imatrix=kind.known,
        )
        if is_token:
            return "found" if any("token" in str(each) for each in report.problems) else "missed"
        figures = report.figures(ProofFigures)
        assert figures is not None
        of = next(each for each in figures.tensors if each.name.startswith(name))
        others = [each for each in figures.tensors if each.verdict is Verdict.OTHER]
        # The rows of a fault before quantization are those of the source, and GGUF moves some.
        is_moved = fault in BEFORE and name.endswith(("attn_q", "attn_k"))
        if others == [of] and (row is None or is_moved or row in of.wrong_rows):
            return "found"
        # In types whose codes are not judged one by one, nothing of a tensor is told.
        is_told = kind.is_scheme or can_judge(ENCODINGS[kind.quant])
        is_noted = is_told and of.unusual and (row is None or row in of.unusual_rows)
        return "noted" if is_noted and of.verdict is Verdict.BOUNDED else "missed"


def flip(
    base: Path, out: Path, name: str, kind: Kind, random: np.random.Generator, *, is_scale: bool
) -> int | None:
    """Write a file with one other bit, and return the row of the matrix, if it is known."""
    if kind.is_scheme:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(base, out)
    else:
        shutil.copy(base, out)
    target = out / "model.safetensors" if kind.is_scheme else out
    header = header_of(open_weights(target))
    parts = {part: each for part, each in header.tensors.items() if part.startswith(f"{name}.")}
    if kind.is_scheme:
        scales = [part for part in parts if part.endswith(SCALES)]
        codes = max(parts, key=lambda part: parts[part].nbytes)
        part = scales[0] if is_scale else codes
        place, row = int(random.integers(parts[part].nbytes)), None
        bit = int(random.integers(8))
    else:
        (part,) = parts
        encoding = parts[part].encoding
        block = int(random.integers(parts[part].nbytes // encoding.size))
        bits = np.flatnonzero(find_codes(encoding) != is_scale)
        offset, bit = divmod(int(random.choice(bits)), 8)
        place, bit = block * encoding.size + offset, 7 - bit
        row = block * encoding.block // parts[part].shape[-1]
    with target.open("r+b") as file:
        file.seek(header.extents[part].offset + place)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1 << bit]))
    return row


def find_codes(encoding: Encoding) -> NDArray[np.bool_]:
    """Return whether each bit of a block is a part of a code."""
    layout = find_layout(encoding)
    block = np.zeros(1, cast("BlockCodec", definition(encoding)).block_dtype)
    names = block.dtype.names or ()
    for name in layout.fields if layout else {*names} - NO_CODES:
        block[name].view(np.uint8)[...] = 0xFF
    return np.unpackbits(block.view(np.uint8)).astype(bool)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("types", nargs="*")
    options = parser.parse_args()
    print(f"| type | {' | '.join(FAULTS)} |")
    print(f"| --- |{' --: |' * len(FAULTS)}")
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch))
        for kind in list_kinds(options.types):
            draws = -(-options.draws // 3) if kind.known else options.draws
            try:
                bench.write_base(kind)
            except ConversionError:
                continue  # The type needs an importance matrix.
            cells = [bench.count(kind, fault, -(-draws // FAULTS[fault])) for fault in FAULTS]
            print(f"| {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
