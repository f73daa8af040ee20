"""A model directory stays readable for other programs: its config, parts and names."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import stored
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def test_the_config_of_a_directory_follows_the_dtype(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    assert weightctl("convert", tiny_llama, tmp_path / "out", "--dtype", "f16").returncode == 0
    before = json.loads((tiny_llama / "config.json").read_text())
    after = json.loads((tmp_path / "out" / "config.json").read_text())
    assert after == before | {"torch_dtype": "float16"}
    tokenizer = (tmp_path / "out" / "tokenizer.json").read_bytes()
    assert tokenizer == (tiny_llama / "tokenizer.json").read_bytes()


def test_the_dtype_of_a_config_inside_a_config_follows(weightctl: Run, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    stored(source / "model.safetensors", weight=np.ones((4, 8), np.float32))
    config = {"dtype": "float32", "text_config": {"torch_dtype": "float32", "n": 1}}
    (source / "config.json").write_text(json.dumps(config))
    weightctl("convert", source, tmp_path / "out", "--dtype", "bf16")
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {
        "dtype": "bfloat16",
        "text_config": {"torch_dtype": "bfloat16", "n": 1},
    }


def test_a_directory_of_parts_is_one_that_transformers_reads(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = weightctl("convert", tiny_llama, out, "--max-shard-size", "1MB")
    assert "5 files take 3.88 MB" in done.stdout
    names = sorted(path.name for path in out.glob("model*"))
    assert names[0] == "model-00001-of-00005.safetensors"
    assert names[-1] == "model.safetensors.index.json"
    merged = tmp_path / "merged"
    assert weightctl("convert", out, merged).returncode == 0
    whole = (merged / "model.safetensors").read_bytes()
    assert weightctl("convert", tiny_llama, tmp_path / "copy").returncode == 0
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == whole


def test_fewer_parts_replace_more(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    weightctl("convert", tiny_llama, out, "--max-shard-size", "1MB")
    done = weightctl("convert", tiny_llama, out, "--max-shard-size", "2MB", "--force")
    assert done.returncode == 0
    assert len(list(out.glob("*.safetensors"))) == 2


def test_an_adapter_stays_one_that_peft_reads(weightctl: Run, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    names = {"base.q.lora_A.weight": np.ones((4, 8), np.float32)}
    stored(source / "adapter_model.safetensors", **names)
    (source / "adapter_config.json").write_text('{"r": 4}')
    done = weightctl("convert", source, tmp_path / "out", "--dtype", "bf16")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path / "out")) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


@pytest.mark.parametrize("rules", [[], ["--tensor-type", ".=f8_e5m2"]])
@pytest.mark.parametrize("is_gguf", [False, True])
def test_the_config_of_8_bit_floats_states_a_dtype_that_torch_computes_in(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, rules: list[str], is_gguf: bool
) -> None:
    source = tiny_llama
    if is_gguf:
        source = tmp_path / "in.gguf"
        assert weightctl("convert", tiny_llama, source).returncode == 0
    done = weightctl("convert", source, tmp_path / "out", "--dtype", "f8_e5m2", *rules)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"
    made = {info.encoding.name for info in open_weights(tmp_path / "out").header.tensors.values()}
    assert made - {"F32"} == ({"F8_E5M2"} if rules else {"F8_E5M2", "BF16"})
