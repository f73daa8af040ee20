"""Invalid combinations of options are refused before anything is written."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

import small_checkpoints
from weightctl import Plan, convert, open_weights, save, shard
from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tensor-type", "q8_0"], "has no type"),
        (["--tensor-type", "=q8_0"], "has no type"),
        (["--tensor-type", "(=q8_0"], "is not a valid regular expression"),
        (["--tensor-type", "norm=i8"], "I8 cannot be used as the dtype of weights"),
        (["--tensor-type", "norm=q8_k"], "cannot encode Q8_K"),
        (["--tensor-type", "norm=q4_k_m"], "is a recipe, not a single type"),
        (["--tensor-type", "nrm=f32"], "no tensor's name matches `nrm`"),
        (["--include", "nrm"], "no tensor matches `nrm`"),
        (["--include", "*.[0-999999999].*"], "has too many numbers"),
        (["--set", "a"], "`--set a` does not have the form"),
        (["--unset", "general.nam"], "there is no metadata"),
        (["--align", "48"], "an alignment of 48 bytes is not supported"),
        (["--align", "page"], "is not a size"),
        (["--max-shard-size", "some"], "is not a size"),
        (["--max-shard-size", "5"], "`5` has no unit\nhint: write 5GB, 5MiB"),
        (["--max-shard-size", "0GB"], "must be more than 0, not 0GB"),
        (["--threads", "0"], "0 is less than 1"),
        (["--report", "no/such/place.json"], "does not exist"),
        (["--dtype", "q8_0"], "for block types, use --quant"),
        (["--dtype", "i8"], "cannot be used as the dtype of weights"),
        (["--dtype", "nonsense"], "is not a type that weightctl supports"),
        (["--quant", "bf16"], "to store unquantized values, use --dtype bf16"),
        (["--quant", "q4_k_xl"], "recipes: Q4_0, Q4_1, Q5_0"),
        (["--quant", "Q4KM"], "did you mean Q4_K_M? "),
        (["--quant", "q4_k_medium"], "did you mean Q4_K_M? "),
        (["--quant", "Q8"], "did you mean Q8_0? "),
        (["--quant", "int4"], "did you mean Q4_0 or "),
        (["--quant", "Q4_K_M.tml"], "did you mean Q4_K_M? "),
        (["--quant", "int8"], "recipes: Q4_0"),
        (["--quant", "q8_k"], "cannot quantize to Q8_K"),
        (["--quant", "iq2_xs"], "which needs an importance matrix with an entry for it"),
        (["--quant", "IQ1_S"], "use --imatrix FILE"),
        (["--quant", "no/such.toml"], "cannot read the recipe no/such.toml"),
        (["--dtype", "bf16", "--quant", "q8_0"], "both given"),
        (["--mem", "much"], "is not a size"),
        (["--mem", "512"], "the size `512` has no unit"),
        (["--mem", "10kB"], "is too little"),
        (["--to", "safetensors"], "has the suffix of gguf"),
        (["--to", "onnx"], "is not a supported format"),
        (["--from", "onnx"], "is not a supported format"),
    ],
)
def test_what_makes_no_sense_is_refused(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""
    assert os.listdir(tmp_path) == []


def test_a_mixture_by_role_is_refused_for_names_that_tell_no_role(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.safetensors"
    bare.write_bytes((tiny_llama / "model.safetensors").read_bytes())
    done = weightctl("convert", bare, tmp_path / "out.gguf", "--quant", "q4_k_m")
    assert (done.returncode, done.stdout) == (2, "")
    assert "use --quant Q4_K (quant in Python)" in done.stderr
    assert os.listdir(tmp_path) == ["bare.safetensors"]


def test_an_unknown_suffix_asks_for_the_format(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.weights"
    assert "use --to FORMAT" in weightctl("convert", tiny_llama, out).stderr
    assert weightctl("convert", tiny_llama, out, "--to", "gguf").returncode == 0
    assert out.read_bytes()[:4] == b"GGUF"


def test_gguf_is_not_a_directory(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    done = weightctl("convert", tiny_llama, f"{tmp_path}/out/", "--to", "gguf")
    assert done.returncode == 2
    assert "model.gguf" in done.stderr


# LoRA adapters


@pytest.mark.parametrize("asked", [[], ["--names", "keep"], ["--quant", "Q8_0"]])
def test_an_adapter_is_not_written_as_gguf(
    weightctl: Run, tmp_path: Path, asked: list[str]
) -> None:
    source = small_checkpoints.adapter(tmp_path)
    done = weightctl("convert", source, tmp_path / "out.gguf", *asked)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "is a LoRA adapter: its names and its order of rows in a GGUF file depend on" in said
    assert "the model that it is for (example/base), which is not known here" in said
    assert "--base MODEL" in said
    assert os.listdir(tmp_path) == ["adapter"]


def test_an_adapter_is_refused_without_its_config_too(weightctl: Run, tmp_path: Path) -> None:
    source = small_checkpoints.adapter(tmp_path)
    (source / "adapter_config.json").unlink()
    done = weightctl("convert", source / "adapter_model.safetensors", tmp_path / "out.gguf", "-n")
    assert done.returncode == 2
    assert "the model that it is for, which is not known" in " ".join(done.stderr.split())


def test_every_way_of_saving_refuses_an_adapter_as_gguf(tmp_path: Path) -> None:
    weights = open_weights(small_checkpoints.adapter(tmp_path))
    with pytest.raises(ConversionError, match="is a LoRA adapter"):
        save(weights, tmp_path / "out.gguf")
    with pytest.raises(ConversionError, match="is a LoRA adapter"):
        save(Plan.copy(weights, "gguf"), tmp_path / "out.gguf")
    with pytest.raises(ConversionError, match="is a LoRA adapter"):
        convert(weights, tmp_path / "out.gguf", dtype="bf16", names="keep")
    rules = tmp_path / "rules.toml"
    rules.write_text("[tensors]\n'.' = 'replicate'\n")
    with pytest.raises(ConversionError, match="is a LoRA adapter"):
        shard(weights, tmp_path / "out", tp=2, to="gguf", rules=rules)
    assert sorted(os.listdir(tmp_path)) == ["adapter", "rules.toml"]


def test_an_adapter_beside_the_config_of_a_model_is_refused_too(
    weightctl: Run, tmp_path: Path
) -> None:
    source = small_checkpoints.adapter(tmp_path)
    (source / "config.json").write_text('{"model_type": "llama"}')
    done = weightctl("convert", source, tmp_path / "out.gguf", "-n")
    assert done.returncode == 2
    assert "is a LoRA adapter" in done.stderr


def test_an_adapter_goes_to_a_directory_and_a_file_of_safetensors(
    weightctl: Run, tmp_path: Path
) -> None:
    source = small_checkpoints.adapter(tmp_path)
    done = weightctl("convert", source, tmp_path / "out", "--dtype", "f16")
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(source))
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["lora_alpha"] == 16
    assert weightctl("convert", source, tmp_path / "out.safetensors").returncode == 0


def test_an_adapter_of_llama_cpp_stays_one(weightctl: Run, tmp_path: Path) -> None:
    source, there, back = (tmp_path / name for name in ("in.gguf", "a.safetensors", "back.gguf"))
    given = small_checkpoints.adapter(tmp_path) / "adapter_model.safetensors"
    settings = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.lora.alpha:f32": "16",
    }
    said = [each for key, text in settings.items() for each in ("--set", f"{key}={text}")]
    rules = r"^base_model\.model\.model\.layers\.(\d+)\.self_attn=blk.\1"
    done = weightctl("convert", given, there, *said, "--rename", rules)
    assert done.returncode == 0, done.stderr
    for before, after in ((there, source), (source, back)):
        done = weightctl("convert", before, after, "--names", "keep")
        assert done.returncode == 0, done.stderr
    assert open_weights(back).metadata["adapter.lora.alpha"].content in (16, "16")
