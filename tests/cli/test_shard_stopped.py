"""A stopped `weightctl shard` reports how to continue, and continues."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from build import safetensors
from commands import asked, document, refusal
from weightctl.write.claims import find_journal

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_that_is_stopped_says_how_it_goes_on_and_it_does(tmp_path: Path) -> None:
    source, out, again = large_llama(tmp_path / "large"), tmp_path / "out", tmp_path / "again"
    note = stopped(source, out)
    journal = find_journal(str(out))
    assert journal is not None
    assert note == f"note: {journal} lists what is complete; the same command continues from there"
    assert not out.exists()
    partial = journal.removesuffix(".journal")
    message = refusal("--gather", partial, tmp_path / "whole")
    assert "the sharded checkpoint is incomplete: the run that wrote it was stopped" in message
    copy = partial.replace(str(out), str(again))
    shutil.copytree(partial, copy)
    shutil.copy(journal, f"{copy}.journal")
    lines = asked(source, out, "--tp", "2").stdout.splitlines()
    assert re.fullmatch(r"\S+ [kM]B were complete already, from a run that was stopped", lines[-2])
    done = document(source, again, "--pp", "2")
    assert done["kept_bytes"] == 0
    assert "plan" in done["started_over"]
    for path in (source, out, again):
        shutil.rmtree(path)


def large_llama(path: Path) -> Path:
    """Write a llama that takes a moment to cut, though nothing of it is on the disk."""
    path.mkdir()
    width, layers = 1024, 5
    shapes = {"model.embed_tokens.weight": (512, width), "model.norm.weight": (width,)}
    for layer in range(layers):
        for name in ("q", "k", "v", "o"):
            shapes[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = (width, width)
        for name, shape in (("gate", (4 * width, width)), ("up", (4 * width, width)),
                            ("down", (width, 4 * width))):  # fmt: skip
            shapes[f"model.layers.{layer}.mlp.{name}_proj.weight"] = shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{name}.weight"] = (width,)
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    raw = safetensors(header)
    with (path / "model.safetensors").open("wb") as file:
        file.write(raw)
        file.truncate(len(raw) + end)
    config = {
        "model_type": "llama", "hidden_size": width, "intermediate_size": 4 * width,
        "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 8,
        "vocab_size": 512, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return path


# The command, keeping a journal from its first moment, as runs that last long do.
JOURNALED = """
from weightctl.__main__ import main
from weightctl.write import journal
journal.BEGIN_AFTER = 0.0
main()
"""


def stopped(source: Path, out: Path) -> str:
    """Stop a run by Ctrl-C where some tensors are complete and others are not; return its words."""
    seconds = 0.05
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", JOURNALED, "shard", source, out, "--tp", "2", "-j", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while process.poll() is None and not find_journal(str(out)):
            time.sleep(0.001)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        message = process.communicate()[1]
        assert process.returncode in {0, 130}, message
        if find_journal(str(out)):
            return message.strip()
        seconds *= 1.5 if process.returncode else 0.6
        shutil.rmtree(out, ignore_errors=True)
    raise AssertionError("no moment was found at which some tensors are complete, and not all")
