"""Outputs that are complete or absent, with mistakes of llama.cpp's tools."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import stored, weights_of
from outcomes import EACH_KIND, begun, random_model, random_weights, standing, untouched
from weightctl import Plan
from weightctl.errors import OutputError
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed
    from outcomes import Kind

    Run = Callable[..., Completed]


@EACH_KIND
def test_a_kill_leaves_nothing_at_the_final_name(kind: Kind, tmp_path: Path) -> None:
    # llama.cpp's tools: a file at the final name, with zeros where its header belongs.
    model = random_model(tmp_path / "model", 6, 2048)
    place = tmp_path / "place"
    place.mkdir()
    process = begun(place, model, f"{place}/{kind.name}", *kind.options)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert standing(place) == {}


def test_an_error_leaves_nothing_at_the_final_name(weightctl: Run, tmp_path: Path) -> None:
    # llama.cpp's tools: what was written until then, with zeros where its header belongs.
    rows = np.ones((1024, 1024), np.float32)
    rows[-1, -1] = np.nan
    stored(tmp_path / "in.safetensors", weight=rows)
    done = weightctl(
        "convert", tmp_path / "in.safetensors", tmp_path / "out.gguf", "--quant", "Q8_0"
    )
    assert done.returncode == 2
    assert os.listdir(tmp_path) == ["in.safetensors"]


# What is asked for, and what is said of it.
REFUSALS = {
    "no such format": (["--to", "onnx"], "`onnx` is not a supported format"),
    "no such type": (["--dtype", "nonsense"], "`nonsense` is not a type"),
    "two types": (["--dtype", "f16", "--quant", "Q8_0"], "both given"),
    "a type it cannot make": (["--quant", "Q8_K"], "cannot quantize to Q8_K"),
    "a type the format lacks": (["--dtype", "f8_e4m3"], "gguf cannot store F8_E4M3"),
    "blocks that do not fit": (
        ["--quant", "Q4_K", "--no-fallback"],
        "is not a multiple of the Q4_K block size",
    ),
    "a second loss": (["--quant", "Q5_0"], "already quantized"),
    "a rule for nothing": (["--tensor-type", "nothing=Q8_0"], "no tensor's name matches `nothing`"),
    "a choice of nothing": (["--include", "nothing"], "no tensor matches `nothing`"),
    "metadata that is not there": (["--unset", "nothing"], "no metadata key `nothing`"),
    "metadata of another type": (["--set", "n:u32=many"], "`many` is not a valid u32"),
    "no alignment": (["--align", "3"], "an alignment of 3 bytes is not supported"),
    "too little memory": (["--mem", "1kB"], "is too little"),
    "no size": (["--max-shard-size", "some"], "`some` is not a size"),
    "a report over the output": (["--report", "out.gguf"], "is the same as the output"),
    "a report nowhere": (["--report", "nowhere/report.json"], "does not exist"),
    "another format than the suffix": (["--to", "safetensors"], "has the suffix of gguf"),
    "a format that is not there": (
        ["--from", "safetensors"],
        ("not a safetensors file: it is gguf"),
    ),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_good_output_survives_a_predictable_refusal(
    weightctl: Run, tmp_path: Path, why: str
) -> None:
    # llama.cpp's tools: destroy the output before they look at what they are asked for.
    arrays = {"a.weight": np.ones((4, 96), np.float32), "b.weight": np.ones((4, 256), np.float32)}
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    save(Plan.copy(weights_of(arrays), "gguf"), source)
    if why == "a second loss":
        assert weightctl("convert", source, tmp_path / "q.gguf", "--quant", "Q8_0").returncode == 0
        source = tmp_path / "q.gguf"
    save(Plan.copy(random_weights(1, 8), "gguf"), out)
    options, says = REFUSALS[why]
    with untouched(tmp_path):
        done = weightctl("convert", source, out, "--force", *options, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr


def test_a_good_output_survives_an_input_that_cannot_be_read(
    weightctl: Run, tmp_path: Path
) -> None:
    # llama.cpp's tools: destroy the output before they look at what they are asked for.
    out = tmp_path / "out.gguf"
    save(Plan.copy(random_weights(1, 8), "gguf"), out)
    (tmp_path / "damaged.gguf").write_bytes(out.read_bytes()[:-100])
    (tmp_path / "text.gguf").write_text("no checkpoint")
    with untouched(tmp_path):
        for name in ("damaged.gguf", "text.gguf", "none.gguf", "out.gguf"):
            assert weightctl("convert", tmp_path / name, out, "--force").returncode == 2


def test_a_full_disk_and_a_missing_directory_give_different_messages(tmp_path: Path) -> None:
    # llama.cpp's tools: one message for both.
    plan = Plan.copy(random_weights(1), "gguf")
    huge = plan.items[0].info._replace(shape=(1 << 40, 1024))
    room = plan.with_items((plan.items[0].__class__(huge, huge),))
    with pytest.raises(OutputError, match=r"are needed, but .* free on its disk") as full:
        save(room, tmp_path / "out.gguf")
    with pytest.raises(OutputError, match=r"the directory .* does not exist") as missing:
        save(plan, tmp_path / "nowhere" / "out.gguf")
    assert full.value.hint == "free some space, or choose another disk"
    assert missing.value.hint == "create the directory first"
