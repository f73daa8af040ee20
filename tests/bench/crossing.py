"""Peak memory, time and disk of one step from a Hugging Face directory to a Q4_K_M GGUF file.

Run with `python tests/bench/crossing.py` (2.2 GB; `--size 100MB` for less). The model is a llama in
bf16 of random numbers. The peak of memory is the resident set of the command's own process, and of
the disk what the folder of the output holds at any time: the output, and a journal.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Self

from llama import HEADS, KV_HEADS, described, size_for, write_random
from measuring import make_parser, measure
from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.formats import format_module
from weightctl.weights.info import TensorInfo
from weightctl.weights.metadata import text

MOST_PEAK = 400_000_000
JOURNAL = 1_000_000  # what a run longer than half a second keeps beside its output
NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "blk.": "model.layers.",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_output": "self_attn.o_proj", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
_EVERY = 0.02  # seconds between looks at the folder


class Watch:
    """The most bytes that a folder holds while a block runs."""

    def __init__(self, folder: Path) -> None:
        self.most = 0
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_EVERY):
            self.most = max(self.most, sum(map(size_of, self._folder.rglob("*"))))


def size_of(path: Path) -> int:
    """Return the bytes of a file, 0 where it has gone."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def write_directory(folder: Path, nbytes: int) -> None:
    """Write a model's directory: a llama of bf16, tied, and the config that it is of."""
    folder.mkdir()
    layers, width = size_for(nbytes)
    vocabulary = 32 * width
    tensors = [
        TensorInfo(hugging_face(info.name), info.shape, ENCODINGS["BF16"])
        for info in described(layers, width, vocabulary)
    ]
    layout = format_module("safetensors").layout(tensors, {"format": text("pt")})
    write_random(layout, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "vocab_size": vocabulary, "hidden_size": width, "intermediate_size": 4 * width,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def hugging_face(name: str) -> str:
    """Return what transformers calls a tensor of GGUF's name."""
    for part, other in NAMES.items():
        name = name.replace(part, other)
    return name


def main() -> None:
    """Measure and print; exit with 1 where a peak is over the target."""
    parser = make_parser(__doc__, size="2.2GB", folder=True)
    parser.add_argument("--recipe", default="Q4_K_M")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        write_directory(folder / "model", arguments.size)
        out = folder / "out" / "model.gguf"
        out.parent.mkdir()
        os.environ["TMPDIR"] = str(out.parent)  # what is put anywhere is seen
        with Watch(out.parent) as watch:
            seconds, peak = measure(folder / "model", out, "--quant", arguments.recipe)
        size, before = out.stat().st_size, (folder / "model" / "model.safetensors").stat().st_size
        made = open_weights(out).header.tensors
    held = max(watch.most, size)
    print(
        f"{arguments.recipe} of {before / 1e6:.0f} MB in one step: {seconds:.1f} s, "
        f"{before / 1e6 / seconds:.0f} MB/s, peak {peak / 1e6:.0f} MB (target "
        f"{MOST_PEAK / 1e6:.0f}), most on the disk {held / 1e6:.1f} MB (target "
        f"{(size + JOURNAL) / 1e6:.1f})"
    )
    assert "token_embd.weight" in made, "the output has not GGUF's names"
    sys.exit(peak > MOST_PEAK or held > size + JOURNAL)


if __name__ == "__main__":
    main()
