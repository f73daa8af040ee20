"""How long it takes to see what is in a PyTorch checkpoint, against `torch.load`.

Run with `python tests/bench/pytorch.py`. The file is written by torch; both sides list every name,
shape and dtype, and run in turns, each a process of its own. Medians and ratios are printed, with
the target.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from measuring import make_parser, seconds_of, side_by_side
from weightctl.text.sizes import format_size

THEIRS = (
    "import sys, torch\n"
    "found = torch.load(sys.argv[1], mmap=True, weights_only=True)\n"
    "for name, tensor in found.items(): print(name, tuple(tensor.shape), tensor.dtype)"
)
OURS = (
    "import sys\n"
    "from weightctl import open_weights\n"
    "found = open_weights(sys.argv[1]).header.tensors\n"
    "for name, info in found.items(): print(name, info.shape, info.encoding.name)"
)


def checkpoint(path: Path, nbytes: int, tensors: int, *, is_zip: bool) -> None:
    """Write random numbers as so many matrices of a mixture of experts, as `torch.save` does."""
    rows = max(nbytes // tensors // 2 // 1024, 1)
    state = {
        f"model.layers.{number // 64}.mlp.experts.{number % 64}.up_proj.weight": torch.randn(
            rows, 1024
        ).to(torch.bfloat16)
        for number in range(tensors)
    }
    torch.save(state, path, _use_new_zipfile_serialization=is_zip)


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__, size="2GB", repeats=7, folder=True)
    parser.add_argument("--tensors", type=int, default=3_000)
    arguments = parser.parse_args()
    python = sys.executable
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        path = str(Path(temporary) / "pytorch_model.bin")
        checkpoint(Path(path), arguments.size, arguments.tensors, is_zip=True)
        size = format_size(Path(path).stat().st_size)
        opened, listed, theirs = side_by_side(
            arguments.repeats,
            lambda: seconds_of([python, "-c", OURS, path]),
            lambda: seconds_of([python, "-m", "weightctl", "ls", "--flat", path]),
            lambda: seconds_of([python, "-c", THEIRS, path]),
        )
        print(f"open and list {size} with {arguments.tensors} tensors, whole process:")
        for what, ours in (("open_weights", opened), ("`weightctl ls --flat`", listed)):
            print(
                f"  {what} {1000 * ours:.0f} ms, torch.load(mmap=True) {1000 * theirs:.0f} ms: "
                f"{theirs / ours:.1f} times faster (target 10)"
            )


if __name__ == "__main__":
    main()
