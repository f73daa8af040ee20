"""Options that make no sense are refused before anything is written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tensor-type", "q8_0"], "says no type"),
        (["--tensor-type", "=q8_0"], "says no type"),
        (["--tensor-type", "(=q8_0"], "is not a regular expression"),
        (["--tensor-type", "norm=i8"], "I8 is not a type for weights"),
        (["--tensor-type", "norm=iq2_xs"], "cannot make IQ2_XS"),
        (["--tensor-type", "norm=q4_k_m"], "is a mixture of types"),
        (["--tensor-type", "nrm=f32"], "no tensor's name matches `nrm`"),
        (["--include", "nrm"], "no tensor matches `nrm`"),
        (["--include", "*.[0-999999999].*"], "is too many numbers"),
        (["--set", "a"], "`a` sets nothing"),
        (["--unset", "general.nam"], "there is no metadata"),
        (["--align", "48"], "cannot be aligned to 48 bytes"),
        (["--align", "page"], "is not a size"),
        (["--max-shard-size", "some"], "is not a size"),
        (["--max-shard-size", "5"], "`5` has no unit\nhint: write 5GB, 5MiB"),
        (["--max-shard-size", "0GB"], "holds nothing"),
        (["--threads", "0"], "is not in the range"),
        (["--report", "no/such/place.json"], "does not exist"),
        (["--dtype", "q8_0"], "--quant takes block types"),
        (["--dtype", "i8"], "is not a type for weights"),
        (["--dtype", "nonsense"], "is not a type that weightctl knows"),
        (["--quant", "bf16"], "--dtype bf16 stores plain numbers"),
        (["--quant", "q4_k_xl"], "recipes: Q2_K_S, Q3_K_S, Q3_K_M"),
        (["--quant", "Q4KM"], "did you mean Q4_K_M? "),
        (["--quant", "q4_k_medium"], "did you mean Q4_K_M? "),
        (["--quant", "Q8"], "did you mean Q8_0? "),
        (["--quant", "int4"], "did you mean Q4_0 or "),
        (["--quant", "Q4_K_M.tml"], "did you mean Q4_K_M? "),
        (["--quant", "int8"], "and by the recipes Q2_K_S"),
        (["--quant", "q8_k"], "cannot quantize to Q8_K"),
        (["--quant", "iq3_s"], "cannot quantize to IQ3_S"),
        (["--quant", "no/such.toml"], "cannot read the recipe no/such.toml"),
        (["--dtype", "bf16", "--quant", "q8_0"], "both given"),
        (["--mem", "much"], "is not a size"),
        (["--mem", "512"], "the size `512` has no unit"),
        (["--mem", "10kB"], "is too little"),
        (["--to", "safetensors"], "has the suffix of gguf"),
        (["--to", "onnx"], "is not a format"),
        (["--from", "onnx"], "is not a format"),
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
    assert "--quant Q4_K is one type throughout" in done.stderr
    assert os.listdir(tmp_path) == ["bare.safetensors"]


def test_an_unknown_suffix_asks_for_the_format(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.weights"
    assert "pass --to" in weightctl("convert", tiny_llama, out).stderr
    assert weightctl("convert", tiny_llama, out, "--to", "gguf").returncode == 0
    assert out.read_bytes()[:4] == b"GGUF"


def test_gguf_is_not_a_directory(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    done = weightctl("convert", tiny_llama, f"{tmp_path}/out/", "--to", "gguf")
    assert done.returncode == 2
    assert "model.gguf" in done.stderr
