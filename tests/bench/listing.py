"""How long it takes to see what is in a checkpoint, against the readers people use today.

Run with `python tests/bench/listing.py`. Everything is measured side by side in one run; medians
and ratios are printed, with the target of each.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import make_parser, seconds_of, side_by_side

EMPTY = "import typer; app = typer.Typer(); app.command()(lambda path: None); app()"
OURS = (
    "import sys, time; start = time.perf_counter(); from weightctl import open_weights\n"
    "header = open_weights(sys.argv[1]).header\n"
    "found = [(i.name, i.shape, i.encoding.name) for i in header.tensors.values()]\n"
    "print(time.perf_counter() - start)"
)
THEIRS = (
    "import sys, time; start = time.perf_counter(); from gguf import GGUFReader\n"
    "found = [(t.name, t.shape, t.tensor_type) for t in GGUFReader(sys.argv[1]).tensors]\n"
    "print(time.perf_counter() - start)"
)
JSON = (
    "import json, sys\n"
    "with open(sys.argv[1], 'rb') as file:\n"
    "    json.loads(file.read(int.from_bytes(file.read(8), 'little')))"
)


def seconds_inside(program: str, path: Path) -> float:
    """Run a program that prints how long its work took, imports included."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def vocabulary_gguf(path: Path, tokens: int) -> None:
    """Write a GGUF of 300 tensors with a vocabulary of so many tokens, scores, types and merges."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def array(kind: int, count: int, content: bytes) -> bytes:
        return struct.pack("<IIQ", 9, kind, count) + content

    pieces = [f"tok{number * 7919 % 1_000_003:x}" for number in range(tokens)]
    values = {
        "general.architecture": struct.pack("<I", 8) + string("llama"),
        "tokenizer.ggml.tokens": array(8, tokens, b"".join(map(string, pieces))),
        "tokenizer.ggml.token_type": array(5, tokens, struct.pack(f"<{tokens}i", *[1] * tokens)),
        "tokenizer.ggml.merges": array(
            8,
            tokens,
            b"".join(string(f"{a} {b}") for a, b in zip(pieces, reversed(pieces))),  # noqa: B905
        ),
    }
    header = b"GGUF" + struct.pack("<IQQ", 3, 300, len(values))
    header += b"".join(string(key) + value for key, value in values.items())
    for number in range(300):
        header += string(f"blk.{number}.attn_q.weight")
        header += struct.pack("<IQQIQ", 2, 64, 16, 0, number * 4096)
    path.write_bytes(header + bytes(-len(header) % 32) + bytes(range(256)) * 16 * 300)


def many_tensors(path: Path, count: int) -> None:
    """Write a safetensors file of so many small tensors, as a mixture of experts has them."""
    header = {
        f"model.layers.{number // 320}.mlp.experts.{number % 320}.down_proj.weight": {
            "dtype": "BF16", "shape": [2, 2], "data_offsets": [8 * number, 8 * number + 8],
        }
        for number in range(count)
    }  # fmt: skip
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(range(256)) * (count // 32))


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__, repeats=11)
    parser.add_argument("--tokens", type=int, default=152_000)
    parser.add_argument("--tensors", type=int, default=20_000)
    arguments = parser.parse_args()
    tiny = Path(__file__).parents[2] / "fixtures" / "tiny-llama"
    python = sys.executable
    with tempfile.TemporaryDirectory() as temporary:
        gguf, large = Path(temporary) / "vocabulary.gguf", Path(temporary) / "large.safetensors"
        vocabulary_gguf(gguf, arguments.tokens)
        many_tensors(large, arguments.tensors)
        ours, theirs = side_by_side(
            max(arguments.repeats // 4, 1),
            lambda: seconds_inside(OURS, gguf),
            lambda: seconds_inside(THEIRS, gguf),
        )
        print(f"open and list a GGUF with {arguments.tokens} tokens, imports included:")
        print(f"  weightctl {1000 * ours:.0f} ms, gguf.GGUFReader {1000 * theirs:.0f} ms: "
              f"{theirs / ours:.0f} times faster (target 50)")  # fmt: skip
        ours, empty = side_by_side(
            arguments.repeats,
            lambda: seconds_of([python, "-m", "weightctl", "ls", str(tiny)]),
            lambda: seconds_of([python, "-c", EMPTY, "path"]),
        )
        print("`weightctl ls` of a small checkpoint, whole process:")
        print(f"  {1000 * ours:.0f} ms, an empty typer command {1000 * empty:.0f} ms: "
              f"{1000 * (ours - empty):.0f} ms more (target 60)")  # fmt: skip
        ours, bare = side_by_side(
            arguments.repeats,
            lambda: seconds_of([python, "-m", "weightctl", "ls", str(large)]),
            lambda: seconds_of([python, "-c", JSON, str(large)]),
        )
        print(f"`weightctl ls` of {arguments.tensors} tensors, whole process:")
        print(f"  {1000 * ours:.0f} ms, json.loads of the header {1000 * bare:.0f} ms: "
              f"{1000 * (ours - bare):.0f} ms more (target 200)")  # fmt: skip


if __name__ == "__main__":
    main()
