"""The output of a conversion for people and scripts: the plan before it, the summary after it."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import small_checkpoints
from arrays import stored
from commands import TINY
from commands import run_command as weightctl
from each import each
from lazy import torch
from recipe_models import MODELS
from terminal import on_a_terminal, without_color
from weightctl import DType, Plan, convert, open_weights, save, shard
from weightctl.errors import ArchitectureError, ConversionError, FormatError
from weightctl.system.phases import listening

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Completed


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl("convert", TINY, out, "--quant", "q4_k", "--dry-run")
    assert done.returncode == 0
    assert re.search(r"output\.weight +512x256 +BF16 +-> +Q4_K +73\.7 kB", done.stdout)
    assert "nothing was written" in done.stdout
    assert os.listdir(tmp_path) == []


def test_a_dry_run_knows_the_size_to_the_byte(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    planned = weightctl("convert", TINY, out, "--quant", "q8_0", "--dry-run", "--json")
    done = weightctl("convert", TINY, out, "--quant", "q8_0", "--json")
    planned, done = json.loads(planned.stdout), json.loads(done.stdout)
    assert planned["bytes"] == done["bytes"] == out.stat().st_size
    assert (planned["written"], done["written"]) == (False, True)
    assert planned["tensors"][0]["to"] == "Q8_0"
    assert planned["documents"] == []


def test_the_plan_shows_only_what_is_chosen(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, tmp_path / "a.gguf", "--include", "*norm*", "-n")
    assert "output_norm.weight" in done.stdout
    assert "attn_norm.weight" in done.stdout
    assert "attn_q" not in done.stdout
    assert "tied" not in done.stdout


def test_a_plan_that_cannot_be_carried_out_is_shown(tmp_path: Path) -> None:
    (tmp_path / "out.gguf").write_text("there")
    done = weightctl("convert", TINY, tmp_path / "out.gguf", "--dry-run")
    assert done.returncode == 2
    assert "nothing was written" in done.stdout
    assert "out.gguf exists" in done.stderr


def test_the_summary_says_what_changed(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, tmp_path / "out.gguf", "--quant", "q8_0")
    assert "30 tensors, 3.87 MB -> 2.06 MB (53.3 %)" in done.stdout
    assert "23 x BF16 -> Q8_0" in done.stdout
    assert "7 x BF16 -> F32" in done.stdout
    assert done.stderr == ""


def test_names_that_stay_in_a_gguf_are_reported(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl("convert", TINY, out, "--quant", "q8_0", "--names", "keep")
    assert "7 x BF16 kept" in done.stdout
    assert done.stderr.startswith("note: names and metadata are not translated")


def test_quiet_says_nothing(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, tmp_path / "out.gguf", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_files_that_come_out_larger_than_asked_are_reported(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, tmp_path / "out.gguf", "--max-shard-size", "5B")
    assert "30 of 30 files are larger than 5B: a tensor is not divided between files" in done.stderr
    assert "out-00001-of-00030.gguf and 29 more (gguf)" in done.stdout
    missing = weightctl("ls", tmp_path / "out.gguf")
    assert "did you mean" in missing.stderr
    assert "out-00001-of-00030.gguf" in missing.stderr


# `convert --bpw`, `--size` and `--max-kld`: what the command writes, shows and refuses.


def test_a_budget_gives_a_file_a_recipe_and_a_report(tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out.gguf"
    recipe, report = tmp_path / "found.toml", tmp_path / "report.json"
    text.write_text("The sea was calm, and the wind came from the north.")
    given = ("--calibration-file", text, "--text-file", text, "--recipe-out", recipe)
    options = (*given, "--report", report)
    done = weightctl("convert", TINY, out, "--size", "1.2MB", *map(str, options))
    assert done.returncode == 0, done.stderr
    assert "--size 1.2MB: 4." in done.stdout
    assert "tokens of the text; perplexity" in done.stdout
    assert 1_194_000 <= out.stat().st_size <= 1_200_000
    found = json.loads(report.read_text())["budget"]
    types = tomllib.loads(recipe.read_text())["types"]
    assert list(types.values()) == [each["type"] for each in found["tensors"]]
    # The recipe is not replaced without a request, and nothing is searched for that.
    again = weightctl("convert", TINY, out, "--bpw", "4", *map(str, given), "-f")
    assert again.returncode == 0, again.stderr
    refused = weightctl("convert", TINY, out, "--bpw", "4", "--recipe-out", str(recipe))
    assert (refused.returncode, "found.toml exists" in refused.stderr) == (2, True)


@each("option", ("", "--recipe-out", "--report"))
@each("name", ("out.gguf", "out"))
def test_a_search_does_not_begin_if_its_result_cannot_be_written(
    option: str, name: str, tmp_path: Path
) -> None:
    out, phases = tmp_path / name, list[str]()
    options = (option, tmp_path / "missing" / "file") if option else ()
    if not option and out.suffix:
        out.touch()
    elif not option:
        (out / "other").mkdir(parents=True)
    with listening(phases.append):
        refused = weightctl("convert", TINY, out, "--bpw", "6", *options)
    assert refused.returncode == 2
    assert ("exists" if not option else "does not exist") in refused.stderr
    of_planning = {"reading header 1 of 1", "converting the tokenizer", "planning the conversion"}
    assert {*phases} <= of_planning


def test_altered_shards_are_not_read_for_an_output_that_exists(tmp_path: Path) -> None:
    shard(TINY, tmp_path / "shards", tp=2)
    file = tmp_path / "shards" / "rank-1" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    (tmp_path / "out.safetensors").touch()
    refused = weightctl("convert", tmp_path / "shards", tmp_path / "out.safetensors")
    assert "out.safetensors exists" in refused.stderr


def test_a_model_for_a_memory_fits_into_it(tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out.gguf"
    text.write_text("The sea was calm, and the wind came from the north.")
    texts = ("--calibration-file", text, "--text-file", text)
    memory = ("--fit", "11MB", "--context", "2048", "--kv-type", "q8_0")
    done = weightctl("convert", TINY, out, *memory, *map(str, texts))
    assert done.returncode == 0, done.stderr
    assert "--fit 11MB --context 2048 --kv-type q8_0: " in done.stdout
    fit = json.loads(weightctl("ls", out, *memory, "--json").stdout)["fit"]
    assert fit["fits"]
    assert 10_950_000 <= fit["bytes"] + fit["embedding"] <= 11_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bpw 4 --size 1MB", "--bpw and --size are both given"),
        ("--bpw 4 --quant Q4_K_M", "--bpw and --quant are both given"),
        ("--fit 1GB --bpw 4", "--bpw and --fit are both given"),
        ("--max-kld 0.1 --dtype f16", "--max-kld and --dtype are both given"),
        ("--types Q4_K", "--types applies only to a budget"),
        ("--recipe-out found.toml", "--recipe-out applies only to a budget"),
        ("--context 512", "--context applies only to a budget"),
        ("--bpw 4 --context 512", "--context and --kv-type apply only to --fit"),
        ("--fit 1GB --kv-type q9", "q9"),
        ("--fit 6MB", "the KV cache takes 393 kB and the compute buffers 6.29 MB"),
        ("--bpw 4 --types Q9_K", "Q9_K"),
        ("--bpw 0", "not a positive number"),
        ("--size huge", "huge"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: str, message: str, tmp_path: Path
) -> None:
    done = weightctl("convert", TINY, tmp_path / "out.gguf", *options.split())
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_budget_for_a_file_that_is_not_a_whole_model_is_refused(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, tmp_path / "out.safetensors", "--bpw", "4")
    assert done.returncode == 2
    assert "needs a GGUF file" in done.stderr


# Which tensors and files a conversion includes, and where it writes them.


def test_tensors_can_be_left_out(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl("convert", TINY, out, "--include", "blk.[0-1].*", "--exclude", "*norm*")
    assert "14 x BF16 kept" in done.stdout
    assert "16 left out" in done.stdout
    assert len(open_weights(out).header.tensors) == 14


def test_metadata_can_be_set_and_removed(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    weightctl("convert", TINY, first, "--set", "general.name=tiny", "--set", "n:u32=5")
    weightctl("convert", first, second, "--set", "n=6", "--unset", "general.name")
    assert open_weights(first).metadata["general.name"].content == "tiny"
    assert open_weights(second).metadata["n"] == ("u32", 6)
    assert "general.name" not in open_weights(second).metadata


def test_tensors_start_where_they_are_told_to(tmp_path: Path) -> None:
    weightctl("convert", TINY, tmp_path / "a.gguf", "--align", "4KiB")
    extents = open_weights(tmp_path / "a.gguf").header.extents.values()
    assert all(extent.offset % 4096 == 0 for extent in extents)


# A model directory stays readable for other programs: its config, parts and names.


def test_the_config_of_a_directory_follows_the_dtype(tmp_path: Path) -> None:
    assert weightctl("convert", TINY, tmp_path / "out", "--dtype", "f16").returncode == 0
    before = json.loads((TINY / "config.json").read_text())
    after = json.loads((tmp_path / "out" / "config.json").read_text())
    assert after == before | {"torch_dtype": "float16"}
    tokenizer = (tmp_path / "out" / "tokenizer.json").read_bytes()
    assert tokenizer == (TINY / "tokenizer.json").read_bytes()


def test_the_dtype_of_a_config_inside_a_config_follows(tmp_path: Path) -> None:
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


def test_a_directory_of_parts_is_one_that_transformers_reads(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = weightctl("convert", TINY, out, "--max-shard-size", "1MB")
    assert "5 files take 3.88 MB" in done.stdout
    names = sorted(path.name for path in out.glob("model*"))
    assert names[0] == "model-00001-of-00005.safetensors"
    assert names[-1] == "model.safetensors.index.json"
    merged = tmp_path / "merged"
    assert weightctl("convert", out, merged).returncode == 0
    whole = (merged / "model.safetensors").read_bytes()
    assert weightctl("convert", TINY, tmp_path / "copy").returncode == 0
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == whole


def test_fewer_parts_replace_more(tmp_path: Path) -> None:
    out = tmp_path / "out"
    weightctl("convert", TINY, out, "--max-shard-size", "1MB")
    done = weightctl("convert", TINY, out, "--max-shard-size", "2MB", "--force")
    assert done.returncode == 0
    assert len(list(out.glob("*.safetensors"))) == 2


def test_an_adapter_stays_one_that_peft_reads(tmp_path: Path) -> None:
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
    tmp_path: Path, rules: list[str], is_gguf: bool
) -> None:
    source = TINY
    if is_gguf:
        source = tmp_path / "in.gguf"
        assert weightctl("convert", TINY, source).returncode == 0
    done = weightctl("convert", source, tmp_path / "out", "--dtype", "f8_e5m2", *rules)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"
    made = {info.encoding.name for info in open_weights(tmp_path / "out").header.tensors.values()}
    assert made - {"F32"} == ({"F8_E5M2"} if rules else {"F8_E5M2", "BF16"})


# The loss of precision that a conversion reports.


def test_numbers_too_large_for_their_type_are_counted(tmp_path: Path) -> None:
    large = np.array([[1.0, 65519.0, 65520.0, -1e9, np.inf]], np.float32)
    source = stored(tmp_path / "in.safetensors", a=large, b=np.ones((2, 2), np.float32))
    done = weightctl("convert", source, tmp_path / "out.safetensors", "--dtype", "f16")
    assert done.returncode == 0
    assert "2 values in `a` were too large for their new type; a type with" in done.stderr
    found = open_weights(tmp_path / "out.safetensors").a.data().to_numpy()
    assert found.tolist() == [[1.0, 65504.0, np.inf, -np.inf, np.inf]]


def test_nan_in_a_matrix_is_an_error_that_names_the_element(tmp_path: Path) -> None:
    damaged = np.ones((600, 1024), np.float32)
    damaged[500, 7] = np.nan
    source = stored(tmp_path / "in.safetensors", weight=damaged)
    done = weightctl("convert", source, tmp_path / "out.gguf", "--quant", "Q8_0")
    assert done.returncode == 2
    assert f"`weight` has nan at element {500 * 1024 + 7}" in done.stderr
    assert os.listdir(tmp_path) == ["in.safetensors"]


def test_a_second_loss_needs_to_be_allowed(tmp_path: Path) -> None:
    once, twice = tmp_path / "once.gguf", tmp_path / "twice.gguf"
    weightctl("convert", TINY, once, "--quant", "q4_k")
    refused = weightctl("convert", once, twice, "--quant", "q8_0")
    assert refused.returncode == 2
    assert "--allow-requantize" in refused.stderr
    assert (
        weightctl("convert", once, twice, "--quant", "q8_0", "--allow-requantize").returncode == 0
    )


def test_the_summary_tells_what_rounding_cost_worst_first(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).standard_normal((8, 256), np.float32)
    source = stored(
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


def test_all_but_the_worst_are_folded(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, tmp_path / "out.gguf", "--quant", "q4_k")
    assert re.search(r"^  18 more  6\.\d\d % to 7\.\d\d %$", done.stdout, re.MULTILINE)


def test_json_has_the_relative_rmse_of_each_tensor(tmp_path: Path) -> None:
    exact, out = tmp_path / "exact.gguf", tmp_path / "out.gguf"
    assert weightctl("convert", TINY, exact, "--dtype", "f32").returncode == 0
    done = weightctl("convert", TINY, out, "--quant", "q8_0", "--json", "--report", "r.json",
                     cwd=tmp_path)  # fmt: skip
    document = json.loads(done.stdout)
    assert json.loads((tmp_path / "r.json").read_text()) == document
    # In the same order of rows, since what is rounded is what the steps on the way have made.
    before, after = open_weights(exact), open_weights(out)
    for tensor in document["tensors"]:
        if tensor["to"] == "F32":
            assert not tensor["relative_rmse"]
            continue
        x, y = (
            weights[tensor["name"]].data().astype(DType.float32).to_numpy().astype(np.float64)
            for weights in (before, after)
        )
        expected = np.sqrt(((x - y) ** 2).sum() / (x**2).sum())
        assert tensor["relative_rmse"] == pytest.approx(expected, rel=1e-4)


# The naming convention of an output, and what depends on it: config, tokenizer, row orders.


GGUF_NAMES = {
    "token_embd.weight", "output.weight", "output_norm.weight",
    *(
        f"blk.{layer}.{part}.weight"
        for layer in range(3)
        for part in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output",
                     "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    ),
}  # fmt: skip
DOCUMENTS = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the shipped model as a GGUF file that llama.cpp loads."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    assert weightctl("convert", TINY, path).returncode == 0
    return path


def names(path: Path) -> set[str]:
    return set(open_weights(path).header.tensors)


def read_report(done: Completed) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


# Into GGUF


def test_a_gguf_gets_its_own_names_config_and_tokenizer(gguf: Path) -> None:
    weights = open_weights(gguf)
    assert set(weights.header.tensors) == GGUF_NAMES
    says = {key: value.content for key, value in weights.metadata.items()}
    assert says["general.architecture"] == "llama"
    assert says["llama.attention.head_count_kv"] == 2
    assert says["tokenizer.ggml.model"] == "gpt2"
    assert len(says["tokenizer.ggml.tokens"]) == 512
    norm = weights["blk.0.attn_norm.weight"].info
    assert (norm.encoding.name, norm.shape) == ("F32", (256,))


def test_query_and_key_rows_are_in_the_order_of_llama_cpp(gguf: Path) -> None:
    before, after = (open_weights(path) for path in (TINY, gguf))
    for theirs, ours, heads in (("q", "attn_q", 8), ("k", "attn_k", 2)):
        rows = before[f"model.layers.1.self_attn.{theirs}_proj.weight"].data().to_numpy()
        pairs = rows.reshape(heads, 2, 16, 256).swapaxes(1, 2).reshape(rows.shape)
        assert after[f"blk.1.{ours}.weight"].data().to_numpy().tobytes() == pairs.tobytes()


def test_keep_leaves_names_in_a_gguf(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl("convert", TINY, out, "--names", "keep")
    assert names(out) == names(TINY)
    assert "llama.cpp does not load the output" in done.stderr
    assert "Hugging Face -> GGUF" not in done.stdout


def test_a_checkpoint_without_a_config_keeps_its_names(tmp_path: Path) -> None:
    source = stored(tmp_path / "in.safetensors", a=np.ones((2, 2), np.float32))
    assert weightctl("convert", source, tmp_path / "out.gguf").returncode == 0
    assert names(tmp_path / "out.gguf") == {"a"}


@pytest.mark.parametrize("outer", ["", "state_dict.", "state_dict.model."])
def test_a_language_model_without_a_config_becomes_a_gguf_only_if_names_are_kept(
    outer: str, tmp_path: Path
) -> None:
    model = {name: torch.ones(2, 2) for name in open_weights(TINY).header.tensors}
    inner = {outer.removeprefix("state_dict.") + name: value for name, value in model.items()}
    torch.save({"state_dict": inner, "epoch": 3} if outer else model, tmp_path / "in.ckpt")
    words = ("convert", tmp_path / "in.ckpt", tmp_path / "out.gguf")
    refused = weightctl(*words)
    assert refused.returncode == 2
    assert "llama.cpp would not load the output" in refused.stderr
    assert "the closest is llama" in refused.stderr
    assert "--names keep" in refused.stderr
    assert os.listdir(tmp_path) == ["in.ckpt"]
    assert weightctl(*words, "--names", "keep").returncode == 0
    assert names(tmp_path / "out.gguf") == {f"{outer}{name}" for name in model}


def test_gguf_names_can_be_asked_for_in_safetensors(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert weightctl("convert", TINY, out, "--names", "gguf").returncode == 0
    weights = open_weights(out)
    assert set(weights.header.tensors) == GGUF_NAMES
    assert weights.metadata["llama.block_count"] == ("u32", 3)


# Into a model's directory


def test_a_directory_gets_hugging_faces_names_and_all_that_stands_beside(
    gguf: Path, tmp_path: Path
) -> None:
    done = weightctl("convert", gguf, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "llama, GGUF -> Hugging Face" in done.stdout
    made = set(os.listdir(tmp_path / "out"))
    assert made >= DOCUMENTS | {"model.safetensors"}
    assert names(tmp_path / "out") == names(TINY)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_key_value_heads"] == 2
    assert "bfloat16" in (config.get("dtype"), config.get("torch_dtype"))


def test_there_and_back_is_the_same_bytes(gguf: Path, tmp_path: Path) -> None:
    assert weightctl("convert", gguf, tmp_path / "back").returncode == 0
    done = weightctl("diff", TINY, tmp_path / "back", "--hash")
    assert done.stdout.splitlines()[-1] == "30 tensors, no difference"


def test_a_directory_in_parts_has_all_of_it_too(gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert weightctl("convert", gguf, out, "--max-shard-size", "1MB").returncode == 0
    assert DOCUMENTS | {"model.safetensors.index.json"} <= set(os.listdir(out))
    done = weightctl("diff", TINY, out, "--hash")
    assert done.stdout.splitlines()[-1] == "30 tensors, no difference"


def test_keep_leaves_names_in_a_directory(gguf: Path, tmp_path: Path) -> None:
    done = weightctl("convert", gguf, tmp_path / "out", "--names", "keep")
    assert os.listdir(tmp_path / "out") == ["model.safetensors"]
    assert names(tmp_path / "out") == GGUF_NAMES
    assert "GGUF's names and metadata are kept without a config.json" in done.stderr


def test_a_file_has_no_place_for_a_config_and_keeps_its_names(gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert weightctl("convert", gguf, out).returncode == 0
    assert names(out) == GGUF_NAMES


def test_a_file_gets_hugging_faces_names_where_they_are_asked_for(
    gguf: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    done = weightctl("convert", gguf, out, "--names", "hf")
    assert names(out) == names(TINY)
    assert os.listdir(tmp_path) == ["out.safetensors"]
    assert "config.json" in done.stderr
    assert (
        "can only be written to a directory: without them transformers does not load the output"
    ) in done.stderr


def test_a_directory_that_is_hugging_faces_already_is_copied(tmp_path: Path) -> None:
    for asked in ("auto", "hf", "keep"):
        done = weightctl("convert", TINY, tmp_path / asked, "--names", asked)
        assert done.returncode == 0
        assert sorted(os.listdir(tmp_path / asked)) == sorted(os.listdir(TINY))
        config = (tmp_path / asked / "config.json").read_bytes()
        assert config == (TINY / "config.json").read_bytes()


def test_a_gguf_that_is_one_already_keeps_its_metadata(gguf: Path, tmp_path: Path) -> None:
    for asked in ("auto", "gguf", "keep"):
        out = tmp_path / f"{asked}.gguf"
        assert weightctl("convert", gguf, out, "--names", asked).returncode == 0
        assert out.read_bytes() == gguf.read_bytes()


# What is told


def test_a_plan_shows_the_steps_on_the_way(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, tmp_path / "out.gguf", "--dry-run")
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert lines["attn_q.weight"].endswith("rows of 8 heads reordered for interleaved RoPE")
    assert lines["attn_k.weight"].endswith("rows of 2 heads reordered for interleaved RoPE")
    assert "heads" not in lines["attn_v.weight"]
    assert "\nllama, Hugging Face -> GGUF\n" in done.stdout
    assert os.listdir(tmp_path) == []


def test_a_script_learns_of_what_each_tensor_is_made(tmp_path: Path) -> None:
    asked = "convert", TINY, tmp_path / "out.gguf", "-n", "--json"
    found = read_report(weightctl(*asked))
    assert found["translation"] == "llama, Hugging Face -> GGUF"
    tensors = {each["name"]: each for each in found["tensors"]}
    query, norm = tensors["blk.2.attn_q.weight"], tensors["output_norm.weight"]
    assert query["sources"] == ["model.layers.2.self_attn.q_proj.weight"]
    assert query["steps"] == ["rows of 8 heads reordered for interleaved RoPE"]
    assert norm["sources"] == ["model.norm.weight"]
    assert (norm["from"], norm["to"]) == ("BF16", "F32")
    kept = read_report(weightctl(*asked, "--names", "keep"))
    assert kept["translation"] is None
    assert all(each["sources"] == [each["name"]] for each in kept["tensors"])
    assert all(each["steps"] == [] for each in kept["tensors"])


def test_a_script_learns_of_the_documents_to_the_byte(gguf: Path, tmp_path: Path) -> None:
    planned = read_report(weightctl("convert", gguf, tmp_path / "out", "--dry-run", "--json"))
    assert os.listdir(tmp_path) == []
    found = {each["name"]: each["bytes"] for each in planned["documents"]}
    assert found.keys() >= DOCUMENTS
    done = read_report(weightctl("convert", gguf, tmp_path / "out", "--json"))
    assert {each["name"] for each in done["documents"]} == found.keys()
    assert found["tokenizer.json"] == (tmp_path / "out" / "tokenizer.json").stat().st_size


def test_recipes_know_roles_whatever_the_names(tmp_path: Path) -> None:
    def types(*asked: str) -> dict[str, str]:
        done = weightctl("convert", TINY, tmp_path / "out.gguf", "--quant", "Q4_K_M", "-n",
                         "--json", *asked)  # fmt: skip
        matrices = (each for each in read_report(done)["tensors"] if len(each["shape"]) > 1)
        return {each["sources"][0]: each["to"] for each in matrices}

    kept = types("--names", "keep")
    assert kept == types()
    assert kept["lm_head.weight"] == "Q6_K"
    assert kept["model.layers.2.mlp.down_proj.weight"] == "Q6_K"
    assert kept["model.layers.0.mlp.down_proj.weight"] == "Q4_K"


# What is chosen


def test_what_is_included_and_excluded_is_called_as_in_the_output(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    asked = "--include", "blk.[0-1].*", "--exclude", "*_norm*"
    assert weightctl("convert", TINY, out, *asked).returncode == 0
    assert len(names(out)) == 14
    done = weightctl("convert", TINY, out, "--include", "model.layers.*", "--force")
    assert done.returncode == 2
    assert "no tensor matches `model.layers.*`" in done.stderr
    assert (
        "hint: patterns apply to the names in the output, after --rename and --names" in done.stderr
    )
    done = weightctl("convert", TINY, out, "--tensor-type", "q_proj=Q8_0", "--force")
    assert done.returncode == 2
    assert "no tensor's name matches `q_proj`" in done.stderr
    assert "hint: patterns apply to the names in the output" in done.stderr


# Renaming


def test_a_substitution_of_sed_is_answered_with_the_rule(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, tmp_path / "out", "--rename", "s/^model/net/g")
    assert done.returncode == 2
    assert done.stderr == (
        "error: `--rename s/^model/net/g` is not a rule `REGEX=NEW`\n"
        "hint: write --rename '^model=net'\n"
    )


def test_the_number_of_renamed_tensors_is_stated(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, tmp_path / "out.safetensors", "--rename", "^model=net")
    line = "29 tensors renamed: `model.embed_tokens.weight` is `net.embed_tokens.weight` ..."
    assert line in done.stdout.splitlines()


def test_a_training_checkpoint_says_how_it_becomes_a_model(tmp_path: Path) -> None:
    done = weightctl("convert", TINY.parent / "training.pt", tmp_path / "out")
    assert "to make a model of it, use --config DIR (config in Python)" in done.stderr
    assert "tensors are the state of an optimizer; --weights-only" in done.stderr


def test_the_shard_of_one_rank_is_not_a_whole_model(tmp_path: Path) -> None:
    weightctl("shard", TINY, tmp_path / "ranks", "--tp", "2")
    done = weightctl("convert", tmp_path / "ranks" / "rank-1", tmp_path / "out.gguf")
    assert done.returncode == 2
    assert "has only the tensors of one rank" in done.stderr
    assert f"`weightctl shard {tmp_path / 'ranks'} OUT --gather`" in done.stderr


def renamed_in_safetensors(model: Path, out: Path, *asked: str) -> Completed:
    return weightctl("convert", model, out, "--names", "keep", *asked)


def test_rules_without_a_file_are_followed_in_their_order(tmp_path: Path) -> None:
    out, rules = tmp_path / "out.safetensors", tmp_path / "a=b.toml"
    rules.write_text("[rename]\n'^lm_head' = 'file'\n'^lm' = 'late'\n'^model\\.norm' = 'norm'")
    asked = (
        *("--rename", r"^model\.layers\.(\d+)\.=blk.\1."),
        *("--rename", str(rules)),
        *("--rename", "^model\\.="),
    )
    done = renamed_in_safetensors(TINY, out, *asked)
    assert done.returncode == 2
    assert "no tensor's name matches `^lm`, or earlier rules" in done.stderr
    rules.write_text("[rename]\n'^lm_head' = 'file'\n'^model\\.norm' = 'norm'")
    done = renamed_in_safetensors(TINY, out, *asked)
    assert done.returncode == 0, done.stderr
    found = names(out)
    assert {"file.weight", "norm.weight", "embed_tokens.weight"} <= found
    assert "blk.2.self_attn.q_proj.weight" in found


def test_an_output_is_never_the_file_of_rules(tmp_path: Path) -> None:
    out = tmp_path / "rules.safetensors"
    out.write_text("[rename]\n'^model' = 'm'")
    done = renamed_in_safetensors(TINY, out, "--rename", str(out), "--force")
    assert done.returncode == 2
    assert "is the file of naming rules" in done.stderr


def test_patterns_that_match_the_names_before_renaming_are_explained(tmp_path: Path) -> None:
    asked = "--rename", "^model=m", "--include", "model.*"
    done = renamed_in_safetensors(TINY, tmp_path / "a.safetensors", *asked)
    assert done.returncode == 2
    assert "no tensor matches `model.*`" in done.stderr
    assert "patterns apply to the names in the output, after --rename" in done.stderr


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("=x", "`--rename =x` has no pattern before `=`"),
        ("(=x", "`(` is not a valid regular expression"),
        (r"head=\1", "invalid group reference 1"),
        ("none.toml", "a rule without a file is --rename '"),
    ],
)
def test_a_rule_that_is_none_is_refused(tmp_path: Path, rule: str, says: str) -> None:
    done = renamed_in_safetensors(TINY, tmp_path / "a.safetensors", "--rename", rule)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())


# Metadata


def test_metadata_comes_from_a_file_and_goes_by_patterns(gguf: Path, tmp_path: Path) -> None:
    template, out = tmp_path / "template.jinja", tmp_path / "out.gguf"
    template.write_text("{{ messages }}\n")
    asked = "--set", f"tokenizer.chat_template=@{template}", "--unset", "tokenizer.*"
    done = weightctl("convert", gguf, out, *asked)
    assert done.returncode == 0, done.stderr
    found = {key: value.content for key, value in open_weights(out).metadata.items()}
    assert found["tokenizer.chat_template"] == "{{ messages }}\n"
    assert [key for key in found if key.startswith("tokenizer.")] == ["tokenizer.chat_template"]
    done = weightctl("convert", gguf, out, "--unset", "nothing.*")
    assert done.returncode == 2
    assert "there is no metadata key `nothing.*` to remove" in done.stderr


def test_an_output_is_never_the_file_of_a_value(gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "name.gguf"
    out.write_text("mine")
    done = weightctl("convert", gguf, out, "--set", f"general.name=@{out}", "--force")
    assert done.returncode == 2
    assert "is the value of `general.name`" in done.stderr
    assert out.read_text() == "mine"


# Checkpoints with missing parts: what is listed, converted and refused.


PART = "model-00002-of-00002.safetensors"
OTHER = "model-00001-of-00002.safetensors"
NOTE = f"part 2 of 2; the other part is missing: `{OTHER}`"


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The second of two parts, beside their index and a config."""
    path = small_checkpoints.split(tmp_path)
    (path / OTHER).unlink()
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


def test_a_part_is_listed_with_a_note(alone: Path) -> None:
    for path in (alone, alone / PART):
        done = weightctl("ls", path)
        assert (done.returncode, done.stderr) == (0, f"note: {NOTE}\n")
        assert "lm_head.weight" in done.stdout


@pytest.mark.parametrize("out", ["out.gguf", "out.safetensors", "out"])
def test_a_part_is_converted_only_if_that_is_asked_for(
    alone: Path, tmp_path: Path, out: str
) -> None:
    refused = weightctl("convert", alone / PART, tmp_path / out)
    assert refused.returncode == 2
    assert "1 of 2 parts is missing" in refused.stderr
    assert "use --partial (partial=True in Python)" in " ".join(refused.stderr.split())
    assert not (tmp_path / out).exists()
    done = weightctl("convert", alone / PART, tmp_path / out, "--partial")
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        f"note: {NOTE}\n"
        "note: the output lacks the tensors of the missing parts, so it does not load as a model\n"
    )
    assert [*open_weights(tmp_path / out).header.tensors] == ["lm_head.weight"]


def test_a_recipe_for_some_parts_says_that_it_sees_no_others(tmp_path: Path) -> None:
    source = tmp_path / "parts.gguf"
    arrays = {f"blk.{n}.ffn_down.weight": np.ones((8, 256), np.float32) for n in range(4)}
    metadata = {"general.architecture": "llama", "llama.block_count": 4}
    planned = convert(arrays, source, metadata=metadata, max_shard_size=2000)
    assert len(planned.paths) > 1
    os.unlink(planned.paths[-1])
    made = convert(
        planned.paths[0], tmp_path / "o.gguf", quant="Q4_K_M", partial=True, dry_run=True
    )
    assert any("with parts missing" in note for note in made.notes)
    plain = convert(planned.paths[0], tmp_path / "o.gguf", dtype="f16", partial=True, dry_run=True)
    assert not any("with parts missing" in note for note in plain.notes)


def test_names_are_translated_only_for_a_whole_model(alone: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError):
        convert(alone, tmp_path / "out.gguf", names="gguf", partial=True)


def test_partial_is_for_paths(alone: Path, tmp_path: Path) -> None:
    weights = open_weights(alone, partial=True)
    with pytest.raises(ConversionError, match="partial only applies to a path"):
        convert(weights, tmp_path / "out.gguf", partial=True)
    convert(weights, tmp_path / "out.gguf")
    with pytest.raises(FormatError, match="1 of 2 parts is missing"):
        convert(alone, tmp_path / "other.gguf")


def test_verify_reports_the_missing_part(alone: Path) -> None:
    done = weightctl("verify", alone)
    assert done.returncode == 1
    assert "1 of 2 parts is missing" in " ".join(done.stdout.split())


# The values of `--quant`: a recipe, a single type, or a file of the user.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    path.write_bytes(MODELS["untied"].file())
    return path


def test_a_dry_run_shows_the_recipe_and_what_it_chose(model: Path, tmp_path: Path) -> None:
    done = weightctl("convert", model, tmp_path / "out.gguf", "--quant", "q4_k_m", "--dry-run")
    assert done.returncode == 0
    assert "recipe Q4_K_M: 49 Q4_K, 9 Q6_K" in done.stdout
    (output,) = (line.split() for line in done.stdout.splitlines() if line.startswith("output.w"))
    assert output[3:5] == ["->", "Q6_K"]
    assert output[-1] == "output"
    assert (
        "attn_v: first and last eighth of the layers and every third layer between" in done.stdout
    )


def test_a_script_learns_the_recipe_and_its_lines(model: Path, tmp_path: Path) -> None:
    done = weightctl("convert", model, tmp_path / "o.gguf", "--quant", "Q4_0", "-n", "--json")
    message = json.loads(done.stdout)
    assert message["recipe"] == "Q4_0"
    lines = {each["name"]: each["chosen_by"] for each in message["tensors"]}
    assert lines["output.weight"] == "output"
    assert lines["blk.0.attn_q.weight"] == "otherwise"
    assert lines["output_norm.weight"] is None


@pytest.mark.parametrize(
    ("arguments", "made", "number"),
    [
        (["--quant", "Q4_0"], {"Q4_0": 57, "Q6_K": 1, "F32": 1}, 2),
        (["--tensor-type", ".*=Q4_0"], {"Q4_0": 58, "F32": 1}, 2),
        (["--quant", "Q4_K"], {"Q4_K": 58, "F32": 1}, 14),
        (["--quant", "Q4_K_M"], {"Q4_K": 49, "Q6_K": 9, "F32": 1}, 15),
        (["--quant", "Q4_K_M", "--tensor-type", "attn=Q8_0"],
         {"Q8_0": 32, "Q4_K": 21, "Q6_K": 5, "F32": 1}, 15),
    ],
    ids=lambda arguments: "=".join(arguments) if isinstance(arguments, list) else None,
)  # fmt: skip
def test_a_name_means_the_recipe_and_a_rule_the_type(
    model: Path, tmp_path: Path, arguments: list[str], made: dict[str, int],
    number: int,
) -> None:  # fmt: skip
    out = tmp_path / "out.gguf"
    done = weightctl("convert", model, out, *arguments)
    assert done.returncode == 0, done.stderr
    weights = open_weights(out)
    assert Counter(node.info.encoding.name for _, node in weights.items()) == made
    assert weights.header.metadata["general.file_type"].content == number


def test_a_file_is_a_recipe_of_ones_own(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("base = 'Q4_K_M'\n[types]\n'attn_[kv]' = 'Q8_0'\n")
    done = weightctl("convert", model, "out.gguf", "--quant", "mine.toml", cwd=tmp_path)
    assert "recipe mine.toml: 37 Q4_K, 16 Q8_0, 5 Q6_K" in done.stdout


def test_a_recipe_file_is_never_the_output(model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text("default = 'Q8_0'\n")
    for out, report in ((recipe, tmp_path / "r.json"), (tmp_path / "out.gguf", recipe)):
        done = weightctl(
            *("convert", model, out, "--to", "gguf", "--quant", recipe, "--force"),
            *("--report", report),
        )
        assert done.returncode == 2
        assert f"{recipe} is the recipe" in done.stderr
    assert recipe.read_text() == "default = 'Q8_0'\n"


def test_why_a_type_was_chosen_gives_way_on_a_narrow_terminal(tmp_path: Path) -> None:
    (tmp_path / "in.gguf").write_bytes(MODELS["tied, rows of 288"].file())
    asked = "convert", "in.gguf", "out.gguf", "--quant", "Q4_K_M", "--dry-run"
    narrow, wide = (
        without_color(on_a_terminal(columns, *asked, cwd=tmp_path)).partition("\n\n")[0]
        for columns in (80, 200)
    )
    assert max(map(len, narrow.splitlines())) <= 80
    assert "not Q6_K\n" in narrow
    assert (
        "instead of Q6_K (attn_v: first and last eighth of the layers and every third layer "
        "between)\n" in wide
    )
    assert "instead of Q4_K\n" in wide


def test_a_tensor_that_has_its_fallback_type_already_counts_as_chosen(tmp_path: Path) -> None:
    (tmp_path / "in.gguf").write_bytes(MODELS["tied, rows of 288"].file())
    fallback = ("--tensor-type", "token_embd=Q8_0")
    weightctl("convert", "in.gguf", "half.gguf", *fallback, cwd=tmp_path)
    done = weightctl("convert", "half.gguf", "out.gguf", "--quant", "Q4_K_M", "--dry-run",
                     cwd=tmp_path)  # fmt: skip
    chosen = re.search(r"^recipe Q4_K_M: .*?(\d+) Q8_0", done.stdout, re.MULTILINE)
    replaced = re.search(r"(\d+) Q8_0 instead of Q6_K", done.stdout)
    assert chosen is not None
    assert replaced is not None
    assert chosen[1] == replaced[1]


def test_a_plan_shows_what_a_rule_decided_and_no_recipe_that_chose_nothing(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "keep.toml").write_text("[types]\n'.*' = 'keep'\n")
    done = weightctl("convert", model, "out.gguf", "--quant", "keep.toml", "--dry-run",
                     "--tensor-type", "output.w=Q8_0", cwd=tmp_path)  # fmt: skip
    (output,) = (line for line in done.stdout.splitlines() if line.startswith("output.w"))
    assert output.endswith("  --tensor-type output.w")
    assert "recipe keep.toml" not in done.stdout


# Invalid combinations of options are refused before anything is written.


@each(
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
        (["--quant", "q4_k_xl"], "`weightctl help convert` lists recipes and types"),
        (["--quant", "whatever"], "recipes: Q4_0, Q4_1, Q5_0"),
        (["--quant", "Q4KM"], "did you mean Q4_K_M? "),
        (["--quant", "q4_k_medium"], "did you mean Q4_K_M? "),
        (["--quant", "Q8"], "did you mean Q8_0? "),
        (["--quant", "int4"], "did you mean Q4_K_M (for GGUF), or W4A16 "),
        (["--quant", "nf4"], "did you mean BNB-NF4 (for a model directory)? "),
        (["--quant", "Q4_K_M.tml"], "did you mean Q4_K_M? "),
        (["--quant", "int8"], "did you mean Q8_0 (for GGUF), or W8A16 "),
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
def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = weightctl("convert", TINY, tmp_path / "out.gguf", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""
    assert os.listdir(tmp_path) == []


def test_a_mixture_by_role_is_refused_for_names_that_tell_no_role(tmp_path: Path) -> None:
    bare = tmp_path / "bare.safetensors"
    bare.write_bytes((TINY / "model.safetensors").read_bytes())
    done = weightctl("convert", bare, tmp_path / "out.gguf", "--quant", "q4_k_m", "--names", "keep")
    assert (done.returncode, done.stdout) == (2, "")
    assert "use --quant Q4_K (quant in Python)" in done.stderr
    assert os.listdir(tmp_path) == ["bare.safetensors"]


def test_an_unknown_suffix_asks_for_the_format(tmp_path: Path) -> None:
    out = tmp_path / "out.weights"
    assert "use --to FORMAT" in weightctl("convert", TINY, out).stderr
    assert weightctl("convert", TINY, out, "--to", "gguf").returncode == 0
    assert out.read_bytes()[:4] == b"GGUF"


def test_gguf_is_not_a_directory(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, f"{tmp_path}/out/", "--to", "gguf")
    assert done.returncode == 2
    assert "out.gguf" in done.stderr


# LoRA adapters


@pytest.mark.parametrize("asked", [[], ["--names", "keep"], ["--quant", "Q8_0"]])
def test_an_adapter_is_not_written_as_gguf(tmp_path: Path, asked: list[str]) -> None:
    source = small_checkpoints.adapter(tmp_path)
    done = weightctl("convert", source, tmp_path / "out.gguf", *asked)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "is a LoRA adapter: its names and its order of rows in a GGUF file depend on" in said
    assert "the model that it is for (example/base), which is not known here" in said
    assert "--base MODEL" in said
    assert os.listdir(tmp_path) == ["adapter"]


def test_an_adapter_is_refused_without_its_config_too(tmp_path: Path) -> None:
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


def test_an_adapter_beside_the_config_of_a_model_is_refused_too(tmp_path: Path) -> None:
    source = small_checkpoints.adapter(tmp_path)
    (source / "config.json").write_text('{"model_type": "llama"}')
    done = weightctl("convert", source, tmp_path / "out.gguf", "-n")
    assert done.returncode == 2
    assert "is a LoRA adapter" in done.stderr


def test_an_adapter_goes_to_a_directory_and_a_file_of_safetensors(tmp_path: Path) -> None:
    source = small_checkpoints.adapter(tmp_path)
    done = weightctl("convert", source, tmp_path / "out", "--dtype", "f16")
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(source))
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["lora_alpha"] == 16
    assert weightctl("convert", source, tmp_path / "out.safetensors").returncode == 0


def test_an_adapter_of_llama_cpp_stays_one(tmp_path: Path) -> None:
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


# The types that a conversion chooses, and its messages if a format does not have one.


def test_substitutes_are_counted_and_can_be_refused(tmp_path: Path) -> None:
    source = stored(
        tmp_path / "in.safetensors",
        a_weight=np.ones((4, 256), np.float32),
        b_weight=np.ones((4, 96), np.float32),
        c_weight=np.ones((4, 100), np.float32),
    )
    out = tmp_path / "out.gguf"
    done = weightctl("convert", source, out, "--quant", "Q4_K")
    assert "1 Q5_0 instead of Q4_K, 1 F16 instead of Q4_K (43.4 % of the parameters)" in done.stdout
    encodings = {name: node.info.encoding.name for name, node in open_weights(out).items()}
    assert encodings == {"a_weight": "Q4_K", "b_weight": "Q5_0", "c_weight": "F16"}
    refused = weightctl("convert", source, out, "--quant", "Q4_K", "--no-fallback", "--force")
    assert refused.returncode == 2
    assert "is not a multiple of the Q4_K block size" in refused.stderr


def test_some_tensors_can_have_other_types(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl(
        "convert", TINY, out, "--quant", "q4_k",
        "--tensor-type", r"blk\.0\..*down=keep", "--tensor-type", "down=Q8_0",
    )  # fmt: skip
    assert "20 x BF16 -> Q4_K" in done.stdout
    assert "2 x BF16 -> Q8_0" in done.stdout
    assert open_weights(out)["blk.0.ffn_down.weight"].info.encoding.name == "BF16"


def test_what_a_format_cannot_hold_is_reported_for_all_tensors(tmp_path: Path) -> None:
    quantized = tmp_path / "q.gguf"
    weightctl("convert", TINY, quantized, "--quant", "q8_0")
    done = weightctl("convert", quantized, tmp_path / "a.safetensors", "--tensor-type", ".=keep")
    assert done.returncode == 2
    assert (
        "`token_embd.weight` is stored as Q8_0, which safetensors does not support" in done.stderr
    )
    assert "... and 18 more" in done.stderr
    assert "--dtype bf16" in done.stderr


def test_quantized_blocks_into_safetensors_say_where_they_can_go(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, tmp_path / "out", "--quant", "q8_0")
    assert "error: safetensors cannot store Q8_0" in done.stderr
    assert "hint: use an output name that ends in .gguf" in done.stderr


def test_fp8_goes_into_safetensors_and_back_out(tmp_path: Path) -> None:
    out = tmp_path / "f8.safetensors"
    assert weightctl("convert", TINY, out, "--dtype", "f8_e4m3").returncode == 0
    assert open_weights(out).header.tensors["lm_head.weight"].encoding.name != "F8_E4M3"
    refused = weightctl("convert", out, tmp_path / "out.gguf", "--names", "keep")
    stored = "`model.layers.0.mlp.down_proj.weight` is stored as F8_E4M3"
    assert f"{stored}, which GGUF does not support" in refused.stderr
    assert "--dtype bf16" in refused.stderr
    done = weightctl("convert", out, tmp_path / "x.gguf", "--dtype", "bf16", "--names", "keep")
    assert done.returncode == 0
    assert weightctl("convert", out, tmp_path / "b.safetensors", "--dtype", "bf16").returncode == 0


# Other checkpoints than whole models of supported families are converted only on request.


RULES = r"""
[rename]
'^net\.(\d+)\.(.*norm)' = 'model.layers.\1.\2'
'^net\.(\d+)\.([qkvo])_' = 'model.layers.\1.self_attn.\2_'
'^net\.(\d+)\.' = 'model.layers.\1.mlp.'
"""


def changed(tiny_llama: Path, folder: Path, **config: object) -> dict[str, Any]:
    """Copy the shipped model, with another config; return its tensors, in float32."""
    folder.mkdir()
    for path in tiny_llama.glob("*.json"):
        shutil.copy(path, folder)
    document = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(document))
    return {
        name: node.data().astype(DType.float32).to_numpy()
        for name, node in open_weights(tiny_llama).items()
    }


def refused(done: Completed, folder: Path) -> str:
    """Return what a refusal says, which must come before anything is written."""
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert os.listdir(folder) == ["in"]
    return done.stderr


def test_what_is_of_no_part_of_a_model_is_refused_until_it_is_excluded(tmp_path: Path) -> None:
    tensors = changed(TINY, tmp_path / "in")
    more = {
        "model.extra.weight": np.ones((2, 2), np.float32),
        "value_head": tensors["lm_head.weight"],
    }
    save_file(tensors | more, tmp_path / "in" / "model.safetensors")
    asked = "convert", tmp_path / "in", tmp_path / "out.gguf"
    says = refused(weightctl(*asked), tmp_path)
    assert "`model.extra.weight` is not a part of llama" in says
    assert "`value_head` is not a part of llama" in says
    assert (
        "to leave out tensors that are not part of the model, use --exclude (exclude in Python)"
    ) in says
    says = refused(weightctl(*asked, "--exclude", "model.extra.*"), tmp_path)
    assert "model.extra" not in says
    assert "value_head" in says
    done = weightctl(*asked, "--exclude", "model.extra.*", "--exclude", "value_head")
    assert done.returncode == 0, done.stderr
    assert len(names(tmp_path / "out.gguf")) == len(tensors)


def test_a_pattern_for_both_what_is_and_what_is_not_a_part_leaves_both_out(tmp_path: Path) -> None:
    tensors = changed(TINY, tmp_path / "in")
    tensors["extra_norm"] = tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    out = tmp_path / "out.gguf"
    assert weightctl("convert", tmp_path / "in", out, "--exclude", "*norm*").returncode == 0
    assert len(names(out)) == 23
    assert not [name for name in names(out) if "norm" in name]


def test_a_pattern_for_nothing_is_refused_beside_one_for_what_is_not_a_part(tmp_path: Path) -> None:
    tensors = changed(TINY, tmp_path / "in")
    tensors["extra"] = tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    done = weightctl("convert", tmp_path / "in", tmp_path / "out.gguf", "--exclude", "extra",
                     "--exclude", "no.such.*")  # fmt: skip
    assert "no tensor matches `no.such.*`" in refused(done, tmp_path)


def test_an_unknown_family_is_refused_with_what_is_known_and_can_be_kept(tmp_path: Path) -> None:
    tensors = changed(TINY, tmp_path / "in", model_type="lama")
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    asked = "convert", tmp_path / "in", tmp_path / "out.gguf"
    says = refused(weightctl(*asked), tmp_path)
    assert "`model_type` is `'lama'`, a model family that weightctl does not support" in says
    assert (
        'to convert the tensors under their present names, use --names keep (names="keep" in '
        "Python), but other programs cannot load such a file as a model"
    ) in says
    assert "the closest is llama, which has 12 of the 12" in says
    assert weightctl(*asked, "--names", "keep").returncode == 0
    assert names(tmp_path / "out.gguf") == names(TINY)


def test_an_unknown_family_is_copied_into_a_directory(tmp_path: Path) -> None:
    tensors = changed(TINY, tmp_path / "in", model_type="lama")
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    assert weightctl("convert", tmp_path / "in", tmp_path / "out").returncode == 0
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(tmp_path / "in"))


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("model.layers.1.mlp.up_proj.weight", None,
         "`model.layers.1.mlp.up_proj.weight` is missing"),
        ("model.layers.2.mlp.up_proj.weight", (500, 256),
         "`model.layers.2.mlp.up_proj.weight` has shape [500, 256] instead of [512, 256]"),
        ("model.layers.0.self_attn.q_proj.weight", (255, 256),
         ("`model.layers.0.self_attn.q_proj.weight` has shape [255, 256] instead of [256, "
             "256]")),
        ("model.layers.0.self_attn.q_norm.weight", (32,),
         "`model.layers.0.self_attn.q_norm.weight` is not a part of llama"),
    ],
    ids=["missing", "of another shape", "of another number of heads", "unexpected"],
)  # fmt: skip
def test_what_is_not_a_whole_model_is_refused_with_the_tensors_name(
    tmp_path: Path, name: str, shape: tuple[int, ...] | None,
    says: str,
) -> None:  # fmt: skip
    tensors = changed(TINY, tmp_path / "in")
    tensors.pop(name, None)
    if shape:
        tensors[name] = np.ones(shape, np.float32)
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    for more in ((), ("--quant", "Q8_0"), ("--dry-run",)):
        found = refused(weightctl("convert", tmp_path / "in", tmp_path / "o.gguf", *more), tmp_path)
        assert says in found
        assert "--names keep" in found


# By a person's own rules


def test_renamed_tensors_are_known_as_a_models(tmp_path: Path) -> None:
    folder, plain = tmp_path / "in", tmp_path / "plain.gguf"
    assert weightctl("convert", TINY, plain).returncode == 0
    tensors = {
        name.replace("model.layers.", "net.").replace("self_attn.", "").replace("mlp.", ""): array
        for name, array in changed(TINY, folder).items()
    }
    assert "net.0.q_proj.weight" in tensors
    save_file(tensors, folder / "model.safetensors")
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    out = tmp_path / "out.gguf"
    done = weightctl("convert", folder, out, "--rename", rules, "--dtype", "bf16")
    assert done.returncode == 0, done.stderr
    assert "llama, Hugging Face -> GGUF" in done.stdout
    same = weightctl("diff", plain, out, "--hash")
    assert same.stdout.splitlines()[-1] == "30 tensors, no difference"


def test_a_rule_renames_what_keeps_its_names_otherwise(tmp_path: Path) -> None:
    source = stored(tmp_path / "in.safetensors", a=np.ones(2, np.float32), b=np.ones(2, np.float32))
    (tmp_path / "rules.toml").write_text("[rename]\n'^a$' = 'first'\n")
    asked = "convert", source, tmp_path / "out.safetensors", "--rename", tmp_path / "rules.toml"
    assert weightctl(*asked).returncode == 0
    assert names(tmp_path / "out.safetensors") == {"first", "b"}


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("[rename]\nnothing = 'b'", "no tensor's name matches `nothing`"),
        (
            "[rename]\n'k_proj' = 'v_proj'",
            "would have the same name",
        ),
        ("[rename]\n'layers' = '\\1'", "invalid group reference 1"),
        ("rename", "is not valid TOML"),
    ],
    ids=["unmatched", "collision", "no such capture", "no TOML"],
)
def test_rules_that_cannot_be_followed_are_refused(tmp_path: Path, rules: str, says: str) -> None:
    (tmp_path / "in").write_text(rules)
    asked = "convert", TINY, tmp_path / "out.gguf", "--rename", tmp_path / "in"
    assert says in refused(weightctl(*asked), tmp_path)


def test_a_file_of_rules_is_never_the_output(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[rename]\n'^model' = 'net'\n")
    done = weightctl("convert", TINY, rules, "--to", "gguf", "--rename", rules, "--force",
                     "--names", "keep")  # fmt: skip
    assert done.returncode == 2
    assert f"{rules} is the file of naming rules" in done.stderr
    assert rules.read_text().startswith("[rename]")
