"""Encoders, decoders and plain numbers on one thread, against ggml, gguf, torch and memcpy.

Run with `python tests/bench/kernels.py`. The numbers are normal ones of standard deviation 0.02
that were bfloat16, like weights. What is compared takes turns; medians are printed, as how many
times faster, beside the target. That both sides make the same bytes is checked on the way. All
write into memory that they have written before.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from measuring import make_parser
from weightctl.codecs import codec, transcode
from weightctl.dtype import ENCODINGS
from weightctl.kernels import active

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    U8 = NDArray[np.uint8]
    F32 = NDArray[np.float32]

K_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
LEGACY = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
# How many times faster than `ggml_quantize_chunk`.
ENCODED = {"Q4_K": 8, "Q5_K": 8, "Q2_K": 4, "Q3_K": 4, "Q6_K": 4, "IQ4_NL": 8, "IQ4_XS": 8}
ENCODED |= dict.fromkeys(LEGACY, 1.5)
PLAIN = (
    ("BF16", "F32"), ("F32", "BF16"), ("F16", "F32"), ("F32", "F16"), ("BF16", "F16"),
    ("F16", "BF16"), ("F8_E4M3", "BF16"),
)  # fmt: skip
ROW = 4096


class Work(NamedTuple):
    """A row of the table: ours and others' doing of the same, and how fast ours is to be.

    `least` is how many times faster than the other it should be, `most` how many times as long as
    memcpy of the bytes that are read and written it may take. Where `either` is set one will do.
    """

    name: str
    ours: Callable[[], U8]
    other: Callable[[], U8]
    least: float
    moved: int
    most: float | None = None
    either: bool = True


@cache
def weights(count: int) -> F32:
    """Return rows of numbers that bfloat16 holds."""
    rows = np.random.default_rng(0).standard_normal((count // ROW, ROW), np.float32)
    rows *= np.float32(0.02)
    return (rows.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@cache
def stored(encoding: str, count: int) -> U8:
    """Return the numbers in another encoding."""
    raw = weights(count).view(np.uint8)
    return raw if encoding == "F32" else transcode(raw, ENCODINGS["F32"], ENCODINGS[encoding]).raw


def encoders(count: int) -> Iterator[Work]:
    """Yield the encoders, against ggml's."""
    sys.path.append(str(Path(__file__).parents[1] / "support"))
    from llama_cpp import ggml_quantize

    for name, least in ENCODED.items():
        rows = weights(count)
        out, others = np.empty_like(stored(name, count)), np.empty_like(stored(name, count))

        def ours(name: str = name, rows: F32 = rows, out: U8 = out) -> U8:
            codec(ENCODINGS[name]).encode(rows, None, out)
            return out

        def other(name: str = name, rows: F32 = rows, out: U8 = others) -> U8:
            return ggml_quantize(name, rows, None, out)

        most = 1.3 if name in LEGACY else None
        yield Work(f"encode {name}", ours, other, least, rows.nbytes + out.nbytes, most)


def decoders(count: int) -> Iterator[Work]:
    """Yield the decoders, against gguf's."""
    for name in (*K_TYPES, *LEGACY):
        blocks, out = stored(name, count), np.empty_like(weights(count))

        def ours(name: str = name, blocks: U8 = blocks, out: F32 = out) -> U8:
            codec(ENCODINGS[name]).decode(blocks, out)
            return out.view(np.uint8)

        def other(name: str = name, blocks: U8 = blocks) -> U8:
            return dequantize(blocks, GGMLQuantizationType[name]).view(np.uint8)

        yield Work(f"decode {name}", ours, other, 10, 2 * out.nbytes, 1.3)


def plain(count: int) -> Iterator[Work]:
    """Yield the conversions of plain numbers, against torch's."""
    for source, target in PLAIN:
        before, after = ENCODINGS[source], ENCODINGS[target]
        raw = stored(source, count)
        out = np.empty((len(raw), ROW * after.size), np.uint8)
        tensor = torch.from_numpy(raw).view(getattr(torch, str(before.ids["pytorch"])))
        made = torch.empty(tensor.shape, dtype=getattr(torch, str(after.ids["pytorch"])))

        def ours(raw: U8 = raw, pair: Any = (before, after), out: U8 = out) -> U8:
            return transcode(raw, *pair, out=out).raw

        def other(tensor: torch.Tensor = tensor, made: torch.Tensor = made) -> U8:
            return made.copy_(tensor).view(torch.uint8).numpy()

        name = f"{source} -> {target}"
        yield Work(name, ours, other, 1, raw.nbytes + out.nbytes, 1.5, either=False)


def measure(work: Work, repeats: int) -> bool:
    """Time what takes turns, print a line, and return whether the bytes are the same."""
    # Half is read and half is written.
    there = np.ones(work.moved // 2, np.uint8)
    copied = np.empty_like(there)
    same = np.array_equal(work.ours(), work.other())
    doings = (work.ours, work.other, lambda: np.copyto(copied, there))
    times: list[list[float]] = [[], [], []]
    for _ in range(repeats):
        for doing, taken in zip(doings, times, strict=True):
            start = time.perf_counter()
            doing()
            taken.append(time.perf_counter() - start)
    ours, other, memcpy = map(statistics.median, times)
    target = f"target {work.least:g}"
    reached = [other / ours >= work.least]
    if work.most is not None:
        target += f" {'or' if work.either else 'and'} {work.most:g} of memcpy"
        reached.append(ours / memcpy <= work.most)
    verdict = (any if work.either else all)(reached)
    print(
        f"  {work.name:<18} {other / ours:6.2f} times faster, {ours / memcpy:5.2f} of memcpy "
        f"({target}): {'reached' if verdict else 'MISSED'}, "
        f"{'same bytes' if same else 'OTHER BYTES'}"
    )
    return same


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__, repeats=7)
    parser.add_argument("--count", type=int, default=1 << 22, help="numbers")
    parser.add_argument("--only", default="", help="of the names, those with this in them")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    count = max(arguments.count // ROW, 1) * ROW
    print(f"{count} numbers, one thread, kernels: {active() or 'off'}")
    same = True
    for title, table in (
        ("encoders, against ggml_quantize_chunk", encoders),
        ("decoders, against gguf.quants.dequantize", decoders),
        ("plain numbers, against torch", plain),
    ):
        print(f"{title}:")
        for work in table(count):
            if arguments.only in work.name:
                same &= measure(work, arguments.repeats)
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
