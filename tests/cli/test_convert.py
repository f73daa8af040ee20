"""What a person and a script see of a conversion."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from weightctl import DType, Plan, WeightData, Weights, open_weights
from weightctl.dtype import ENCODINGS
from weightctl.store import save
from weightctl.targets import target
from weightctl.transforms.cast import cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def store(path: Path, **tensors: np.ndarray) -> Path:
    weights = {name: WeightData.from_numpy(array, name) for name, array in tensors.items()}
    save(Plan.copy(Weights.from_data(weights), "safetensors"), target(str(path)))
    return path


def test_a_dry_run_shows_the_plan_and_writes_nothing(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl("convert", tiny_llama, out, "--quant", "q4_k", "--dry-run")
    assert done.returncode == 0
    assert re.search(r"lm_head\.weight +512x256 +BF16 +-> +Q4_K +73\.7 kB", done.stdout)
    assert "nothing was written" in done.stdout
    assert os.listdir(tmp_path) == []


def test_a_dry_run_knows_the_size_to_the_byte(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    planned = weightctl("convert", tiny_llama, out, "--quant", "q8_0", "--dry-run", "--json")
    done = weightctl("convert", tiny_llama, out, "--quant", "q8_0", "--json")
    planned, done = json.loads(planned.stdout), json.loads(done.stdout)
    assert planned["bytes"] == done["bytes"] == out.stat().st_size
    assert (planned["written"], done["written"]) == (False, True)
    assert planned["tensors"][0]["to"] == "Q8_0"


def test_the_summary_says_what_changed(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--quant", "q8_0")
    assert "30 tensors, 3.87 MB -> 2.06 MB (53.2 %)" in done.stdout
    assert "23 x BF16 -> Q8_0" in done.stdout
    assert "7 x BF16 kept" in done.stdout
    assert done.stderr.startswith("note: names and metadata stay as they are")


def test_quiet_says_nothing(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_numbers_too_large_for_their_type_are_counted(weightctl: Run, tmp_path: Path) -> None:
    large = np.array([[1.0, 65519.0, 65520.0, -1e9, np.inf]], np.float32)
    source = store(tmp_path / "in.safetensors", a=large, b=np.ones((2, 2), np.float32))
    done = weightctl("convert", source, tmp_path / "out.safetensors", "--dtype", "f16")
    assert done.returncode == 0
    assert "2 numbers in 1 tensor were too large for their new type, 2 of them in a" in done.stderr
    found = open_weights(tmp_path / "out.safetensors").a.data().to_numpy()
    assert found.tolist() == [[1.0, 65504.0, np.inf, -np.inf, np.inf]]


def test_nan_in_a_matrix_is_an_error_that_names_the_element(weightctl: Run, tmp_path: Path) -> None:
    damaged = np.ones((600, 1024), np.float32)
    damaged[500, 7] = np.nan
    source = store(tmp_path / "in.safetensors", weight=damaged)
    done = weightctl("convert", source, tmp_path / "out.gguf", "--quant", "Q8_0")
    assert done.returncode == 2
    assert f"`weight` has nan at element {500 * 1024 + 7}" in done.stderr
    assert os.listdir(tmp_path) == ["in.safetensors"]


def test_substitutes_are_counted_and_can_be_refused(weightctl: Run, tmp_path: Path) -> None:
    source = store(
        tmp_path / "in.safetensors",
        a_weight=np.ones((4, 256), np.float32),
        b_weight=np.ones((4, 96), np.float32),
        c_weight=np.ones((4, 100), np.float32),
    )
    out = tmp_path / "out.gguf"
    done = weightctl("convert", source, out, "--quant", "Q4_K")
    assert "2 tensors are Q5_0, F16 instead of Q4_K (43.4 % of the parameters)" in done.stdout
    encodings = {name: node.info.encoding.name for name, node in open_weights(out).items()}
    assert encodings == {"a_weight": "Q4_K", "b_weight": "Q5_0", "c_weight": "F16"}
    refused = weightctl("convert", source, out, "--quant", "Q4_K", "--no-fallback", "--force")
    assert refused.returncode == 2
    assert "do not divide into blocks of Q4_K" in refused.stderr


def test_a_second_loss_needs_to_be_allowed(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    once, twice = tmp_path / "once.gguf", tmp_path / "twice.gguf"
    weightctl("convert", tiny_llama, once, "--quant", "q4_k")
    refused = weightctl("convert", once, twice, "--quant", "q8_0")
    assert refused.returncode == 2
    assert "--allow-requantize" in refused.stderr
    assert (
        weightctl("convert", once, twice, "--quant", "q8_0", "--allow-requantize").returncode == 0
    )


def test_what_a_format_cannot_hold_is_said_for_all_tensors(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    quantized = tmp_path / "q.gguf"
    weightctl("convert", tiny_llama, quantized, "--quant", "q8_0")
    done = weightctl("convert", quantized, tmp_path / "out.safetensors")
    assert done.returncode == 2
    assert "`lm_head.weight` is Q8_0, which safetensors does not have" in done.stderr
    assert "... and 18 more" in done.stderr
    assert "--dtype bf16" in done.stderr


def test_fp8_goes_into_safetensors_and_back_out(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "f8.safetensors"
    assert weightctl("convert", tiny_llama, out, "--dtype", "f8_e4m3").returncode == 0
    refused = weightctl("convert", out, tmp_path / "out.gguf")
    assert "F8_E4M3, which GGUF does not have" in refused.stderr
    assert "--dtype bf16" in refused.stderr
    assert weightctl("convert", out, tmp_path / "x.gguf", "--dtype", "bf16").returncode == 0
    assert weightctl("convert", out, tmp_path / "b.safetensors", "--dtype", "bf16").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tensor-type", "q8_0"], "says no type"),
        (["--tensor-type", "=q8_0"], "says no type"),
        (["--tensor-type", "(=q8_0"], "is no regular expression"),
        (["--tensor-type", "norm=i8"], "cannot make I8"),
        (["--tensor-type", "norm=q4_k_m"], "is a mixture of types"),
        (["--tensor-type", "nrm=f32"], "no tensor's name matches `nrm`"),
        (["--include", "nrm"], "no tensor matches `nrm`"),
        (["--include", "*.[0-999999999].*"], "is too many numbers"),
        (["--set", "a"], "`a` sets nothing"),
        (["--unset", "general.nam"], "there is no metadata"),
        (["--align", "48"], "cannot be aligned to 48 bytes"),
        (["--align", "page"], "is not a size"),
        (["--max-shard-size", "some"], "is not a size"),
        (["--threads", "0"], "is not in the range"),
        (["--report", "no/such/place.json"], "does not exist"),
        (["--dtype", "q8_0"], "--quant takes block types"),
        (["--dtype", "i8"], "is no type for weights"),
        (["--dtype", "nonsense"], "is no type that weightctl knows"),
        (["--quant", "bf16"], "--dtype bf16 stores plain numbers"),
        (["--quant", "q4_k_m"], "q4_k is the plain type"),
        (["--quant", "int8"], "it can to Q8_0, Q5_0 and Q4_K"),
        (["--quant", "q6_k"], "cannot quantize to Q6_K"),
        (["--dtype", "bf16", "--quant", "q8_0"], "both given"),
        (["--mem", "much"], "is not a size"),
        (["--mem", "10kB"], "is too little"),
        (["--to", "safetensors"], "has the suffix of gguf"),
        (["--to", "onnx"], "is no format"),
        (["--from", "onnx"], "is no format"),
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


def test_the_output_does_not_depend_on_memory(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    made = []
    for size in ("4MB", "50MiB", "1GiB"):
        out = tmp_path / f"{size}.gguf"
        assert (
            weightctl("convert", tiny_llama, out, "--quant", "q4_k", "--mem", size).returncode == 0
        )
        made.append(out.read_bytes())
    assert made[0] == made[1] == made[2]


def test_the_config_of_a_directory_follows_the_dtype(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    assert weightctl("convert", tiny_llama, tmp_path / "out", "--dtype", "f16").returncode == 0
    before = json.loads((tiny_llama / "config.json").read_text())
    after = json.loads((tmp_path / "out" / "config.json").read_text())
    assert after == before | {"torch_dtype": "float16"}
    tokenizer = (tmp_path / "out" / "tokenizer.json").read_bytes()
    assert tokenizer == (tiny_llama / "tokenizer.json").read_bytes()


def test_an_unknown_suffix_asks_for_the_format(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.weights"
    assert "pass --to" in weightctl("convert", tiny_llama, out).stderr
    assert weightctl("convert", tiny_llama, out, "--to", "gguf").returncode == 0
    assert out.read_bytes()[:4] == b"GGUF"


def test_gguf_is_no_directory(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    done = weightctl("convert", tiny_llama, f"{tmp_path}/out/", "--to", "gguf")
    assert done.returncode == 2
    assert "model.gguf" in done.stderr


def test_some_tensors_can_have_other_types(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl(
        "convert", tiny_llama, out, "--quant", "q4_k",
        "--tensor-type", r"layers\.0\..*down=keep", "--tensor-type", "down=Q8_0",
    )  # fmt: skip
    assert "20 x BF16 -> Q4_K" in done.stdout
    assert "2 x BF16 -> Q8_0" in done.stdout
    assert open_weights(out)["model.layers.0.mlp.down_proj.weight"].info.encoding.name == "BF16"


def test_tensors_can_be_left_out(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl(
        "convert", tiny_llama, out, "--include", "*.layers.[0-1].*", "--exclude", "*norm*"
    )
    assert "14 x BF16 kept" in done.stdout
    assert "16 left out" in done.stdout
    assert len(open_weights(out).header.tensors) == 14


def test_the_plan_shows_only_what_is_chosen(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "a.gguf", "--include", "*norm*", "-n")
    assert "model.norm.weight" in done.stdout.replace("  norm", "model.norm")
    assert "proj" not in done.stdout
    assert "tied" not in done.stdout


def test_metadata_can_be_set_and_removed(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    weightctl("convert", tiny_llama, first, "--set", "general.name=tiny", "--set", "n:u32=5")
    weightctl("convert", first, second, "--set", "n=6", "--unset", "general.name")
    assert open_weights(first).metadata["general.name"].content == "tiny"
    assert open_weights(second).metadata["n"] == ("u32", 6)
    assert "general.name" not in open_weights(second).metadata


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


def test_tensors_start_where_they_are_told_to(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    weightctl("convert", tiny_llama, tmp_path / "a.gguf", "--align", "4KiB")
    extents = open_weights(tmp_path / "a.gguf").header.extents.values()
    assert all(extent.offset % 4096 == 0 for extent in extents)


def test_the_summary_tells_what_rounding_cost_worst_first(weightctl: Run, tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).standard_normal((8, 256), np.float32)
    source = store(
        tmp_path / "in.safetensors",
        exact=np.ones((8, 256), np.float32),
        small=numbers * 1e-8,
        large=numbers * 1e5,
        usual=numbers,
    )
    done = weightctl("convert", source, tmp_path / "out.safetensors", "--dtype", "f16")
    table = done.stdout.partition("worst first:\n")[2].splitlines()
    assert re.fullmatch(r"  large  F32 -> F16  0\.0\d+ %; \d\d\.\d\d % too large", table[0])
    assert re.fullmatch(r"  small  F32 -> F16  \d+\.\d\d %; \d\d\.\d\d % became zero", table[1])
    assert re.fullmatch(r"  usual  F32 -> F16  0\.0\d+ %", table[2])
    assert not table[3].startswith("  ")


def test_all_but_the_worst_are_folded(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--quant", "q4_k")
    assert re.search(r"^  18 more  6\.\d\d % to 7\.\d\d %$", done.stdout, re.MULTILINE)


def test_json_has_the_relative_rmse_of_each_tensor(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl("convert", tiny_llama, out, "--quant", "q8_0", "--json", "--report", "r.json",
                     cwd=tmp_path)  # fmt: skip
    document = json.loads(done.stdout)
    assert json.loads((tmp_path / "r.json").read_text()) == document
    before, after = open_weights(tiny_llama), open_weights(out)
    for tensor in document["tensors"]:
        if tensor["from"] == tensor["to"]:
            assert tensor["relative_rmse"] is None
            continue
        x, y = (
            weights[tensor["name"]].data().astype(DType.float32).to_numpy().astype(np.float64)
            for weights in (before, after)
        )
        expected = np.sqrt(((x - y) ** 2).sum() / (x**2).sum())
        assert tensor["relative_rmse"] == pytest.approx(expected, rel=1e-4)


def test_a_report_is_not_written_over_anything(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out, there = tmp_path / "out.gguf", tmp_path / "there.json"
    there.write_text("mine")
    for report, says in ((there, "exists"), (out, "is the output itself")):
        done = weightctl("convert", tiny_llama, out, "--report", report)
        assert done.returncode == 2
        assert says in done.stderr
    assert not out.exists()
    assert there.read_text() == "mine"


@pytest.mark.parametrize("threads", ["1", "2", "7"])
def test_the_output_does_not_depend_on_threads(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, threads: str
) -> None:
    out = tmp_path / "out.gguf"
    assert weightctl("convert", tiny_llama, out, "--quant", "q5_0", "-j", threads).returncode == 0
    save(cast(Plan.copy(open_weights(tiny_llama), "gguf"), ENCODINGS["Q5_0"]), tmp_path / "b.gguf")
    assert out.read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_an_adapter_stays_one_that_peft_reads(weightctl: Run, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    names = {"base.q.lora_A.weight": np.ones((4, 8), np.float32)}
    store(source / "adapter_model.safetensors", **names)
    (source / "adapter_config.json").write_text('{"r": 4}')
    done = weightctl("convert", source, tmp_path / "out", "--dtype", "bf16")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path / "out")) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_a_plan_that_cannot_be_carried_out_is_shown(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "out.gguf").write_text("there")
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--dry-run")
    assert done.returncode == 2
    assert "nothing was written" in done.stdout
    assert "out.gguf exists" in done.stderr


def test_files_that_come_out_larger_than_asked_are_told_of(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--max-shard-size", "5")
    assert "30 of 30 files are larger than 5: no tensor is split" in done.stderr
    assert "out-00001-of-00030.gguf and 29 more (gguf)" in done.stdout
    missing = weightctl("ls", tmp_path / "out.gguf")
    assert "did you mean" in missing.stderr
    assert "out-00001-of-00030.gguf" in missing.stderr


def test_the_dtype_of_a_config_inside_a_config_follows(weightctl: Run, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    store(source / "model.safetensors", weight=np.ones((4, 8), np.float32))
    config = {"dtype": "float32", "text_config": {"torch_dtype": "float32", "n": 1}}
    (source / "config.json").write_text(json.dumps(config))
    weightctl("convert", source, tmp_path / "out", "--dtype", "bf16")
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {
        "dtype": "bfloat16",
        "text_config": {"torch_dtype": "bfloat16", "n": 1},
    }


def test_quantized_blocks_into_safetensors_say_where_they_can_go(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out", "--quant", "q8_0")
    assert "error: safetensors does not have Q8_0" in done.stderr
    assert "hint: name the output *.gguf" in done.stderr
