"""Weights in the schemes of serving engines: what is stored, and that it is read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import weightctl
from each import each, usual
from lazy import load_file, save_file, torch, transformers
from small_models import qwen3moe
from weightctl.errors import ConversionError
from weightctl.schemes import WRITTEN
from written_models import CASES, USUAL, convert, relative_error, small_llama, values_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Completed

    Run = Callable[..., Completed]

ATTENTION = "model.layers.0.self_attn."
# The relative RMSE of round-to-nearest for values such as those of the model, by bits.
MOST = {"8": 0.04, "4": 0.16}


def matrix(tmp_path: Path, rows: int = 128, columns: int = 128, **others: torch.Tensor) -> Path:
    source = tmp_path / "in"
    source.mkdir(exist_ok=True)
    torch.manual_seed(1)
    tensors = {"layers.0.q_proj.weight": torch.randn(rows, columns).bfloat16(), **others}
    save_file(tensors, source / "model.safetensors")
    (source / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    return source


def config_of(directory: Path, key: str = "quantization_config") -> Any:
    return json.loads((directory / "config.json").read_text())[key]


def stored(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def test_every_scheme_is_tested() -> None:
    assert {case.partition(":")[0] for case in CASES} == set(WRITTEN)


@each("case", CASES)
def test_the_reported_error_is_that_of_the_values_that_are_read_back(
    tmp_path: Path, case: str
) -> None:
    done = convert(small_llama(), tmp_path / "out", case)
    before, after = values_in(small_llama()), values_in(tmp_path / "out")
    assert before.keys() == after.keys()
    numbers = {item.weight: item.info.name for item in reversed(done.plan.items) if item.weight}
    assert len(numbers) == 14
    for name, tensor in before.items():
        if name not in numbers:
            assert torch.equal(after[name], tensor)
            continue
        stated = [
            done.losses[item.info.name].relative_rmse
            for item in done.plan.items
            if item.weight == name and item.info.name in done.losses
        ]
        assert stated == [pytest.approx(relative_error(after[name], tensor), rel=1e-4)]
        bits = "8" if "8" in case.partition(":")[0] else "4"
        assert 0 < stated[0] < MOST[bits]


@each("case", CASES)
def test_the_output_does_not_depend_on_threads_or_memory(tmp_path: Path, case: str) -> None:
    convert(small_llama(), tmp_path / "a", case, threads=1)
    convert(small_llama(), tmp_path / "b", case, threads=3, memory="4MB")
    whole = (tmp_path / "a" / "model.safetensors").read_bytes()
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == whole


def test_workers_write_the_same_output(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path / "a", "NVFP4A16")
    convert(small_llama(), tmp_path / "b", "NVFP4A16", on="processes:2")
    whole = (tmp_path / "a" / "model.safetensors").read_bytes()
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == whole


@pytest.mark.parametrize("case", ["W4A16:group=32,symmetric=no", "FP8_BLOCK", "GPTQ", "AWQ"])
def test_large_weights_are_made_in_bands(tmp_path: Path, case: str) -> None:
    source = matrix(tmp_path, 4104, 1280)
    done = convert(source, tmp_path / "out", case)
    name = "layers.0.q_proj.weight"
    after, before = values_in(tmp_path / "out")[name], values_in(source)[name]
    (loss,) = done.losses.values()
    assert loss.count == before.numel()
    assert loss.relative_rmse == pytest.approx(relative_error(after, before), rel=1e-4)


@pytest.mark.parametrize("rows", [1, 7, 129])
@pytest.mark.parametrize(
    "case", ["FP8_BLOCK", "W4A16:group=32,symmetric=no", "BNB-NF4", "MLX-4bit"]
)
def test_any_number_of_rows_is_stored(tmp_path: Path, case: str, rows: int) -> None:
    source = matrix(tmp_path, 128, 64, **{"layers.0.k_proj.weight": torch.randn(rows + 1, 192)})
    convert(source, tmp_path / "out", case)
    name = "layers.0.k_proj.weight"
    assert relative_error(values_in(tmp_path / "out")[name], values_in(source)[name]) < 0.2


@each("case", CASES)
def test_zeros_stay_zeros(tmp_path: Path, case: str) -> None:
    zeros = torch.zeros(128, 128).bfloat16()
    source = matrix(tmp_path, **{"layers.0.o_proj.weight": zeros})
    convert(source, tmp_path / "out", case)
    assert not values_in(tmp_path / "out")["layers.0.o_proj.weight"].any()


@each("case", CASES)
def test_tiny_and_huge_values_are_read_back_or_refused(tmp_path: Path, case: str) -> None:
    extreme = torch.zeros(128, 128)
    extreme[0], extreme[1], extreme[2, :32] = 1e-38, 1e-20, 3e-45
    source = matrix(tmp_path, **{"layers.0.o_proj.weight": extreme})
    convert(source, tmp_path / "out", case)
    made = values_in(tmp_path / "out")["layers.0.o_proj.weight"]
    assert torch.isfinite(made).all()
    assert (made - extreme).abs().max() < 2e-20
    extreme[0, 0] = 3e38
    source = matrix(tmp_path, **{"layers.0.o_proj.weight": extreme})
    try:
        convert(source, tmp_path / "out", case, force=True)
    except ConversionError as error:
        assert "too large" in error.message  # noqa: PT017
    else:
        made = values_in(tmp_path / "out")["layers.0.o_proj.weight"]
        assert made[0, 0] == pytest.approx(3e38, rel=0.2)


def test_nan_is_refused_or_becomes_zero(tmp_path: Path) -> None:
    damaged = torch.ones(128, 128)
    damaged[3, 5] = float("nan")
    source = matrix(tmp_path, **{"layers.0.o_proj.weight": damaged})
    for case in ("W4A16", "NVFP4", "AWQ"):
        with pytest.raises(ConversionError, match="has nan at element 389"):
            convert(source, tmp_path / "out", case)
        assert not (tmp_path / "out").exists()
    done = convert(source, tmp_path / "out", "W4A16", nonfinite="zero")
    assert values_in(tmp_path / "out")["layers.0.o_proj.weight"][3, 5] == 0
    assert sum(loss.nonfinite for loss in done.losses.values()) == 1


def test_weights_that_engines_join_share_the_scale_of_the_tensor(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path / "a", "NVFP4A16")
    convert(small_llama(), tmp_path / "b", "FP8")
    for tensors, ending in (
        (stored(tmp_path / "a"), "weight_global_scale"), (stored(tmp_path / "b"), "weight_scale"),
    ):  # fmt: skip
        scales = {name: tensors[f"{ATTENTION}{name}_proj.{ending}"].float() for name in "qkvo"}
        assert scales["q"] == scales["k"] == scales["v"] != scales["o"]
        gates = [tensors[f"model.layers.0.mlp.{name}_proj.{ending}"] for name in ("gate", "up")]
        assert gates[0] == gates[1]


def test_norms_embeddings_and_the_output_projection_are_ignored(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path / "out", "W4A16")
    assert config_of(tmp_path / "out")["ignore"] == ["lm_head"]
    before, after = stored(Path(small_llama())), stored(tmp_path / "out")
    for name in ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"):
        assert torch.equal(after[name], before[name])


def test_routers_are_ignored_and_experts_are_not(tmp_path: Path) -> None:
    experts = {
        "layers.0.mlp.gate.weight": torch.randn(8, 128),
        "layers.0.mlp.experts.0.up_proj.weight": torch.randn(128, 128),
        "layers.0.mlp.experts.1.up_proj.weight": torch.randn(128, 128),
    }
    convert(matrix(tmp_path, **experts), tmp_path / "out", "FP8_DYNAMIC")
    assert config_of(tmp_path / "out")["ignore"] == ["layers.0.mlp.gate", "lm_head"]
    made = stored(tmp_path / "out")
    assert made["layers.0.mlp.experts.1.up_proj.weight"].dtype == torch.float8_e4m3fn
    assert made["layers.0.mlp.gate.weight"].dtype == torch.float32


def test_a_recipe_file_decides_which_weights_are_quantized(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "default = 'W4A16:group=64'\n[types]\n'down_proj' = 'keep'\n"
        "'lm_head' = 'W4A16:group=64'\n'nothing' = 'keep'\n"
    )
    done = convert(small_llama(), tmp_path / "out", str(recipe))
    made = stored(tmp_path / "out")
    assert made["lm_head.weight_packed"].shape == (320, 32)
    assert made["model.layers.0.mlp.down_proj.weight"].dtype == torch.bfloat16
    settings = config_of(tmp_path / "out")
    assert settings["ignore"] == ["model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"]
    assert settings["config_groups"]["group_0"]["weights"]["group_size"] == 64
    assert any("no tensor's name matches `nothing`" in note for note in done.notes)
    assert str(recipe) in done.plan.consulted


def test_a_rule_keeps_a_weight_or_gives_it_a_plain_type(tmp_path: Path) -> None:
    rules = {"down_proj": "keep", "up_proj": "f32"}
    done = convert(small_llama(), tmp_path / "out", "FP8", tensor_types=rules)
    made = stored(tmp_path / "out")
    assert made["model.layers.0.mlp.down_proj.weight"].dtype == torch.bfloat16
    assert made["model.layers.0.mlp.up_proj.weight"].dtype == torch.float32
    assert any("only some of these are quantized" in note for note in done.notes)


def test_weights_whose_rows_do_not_fit_keep_their_type(tmp_path: Path) -> None:
    source = matrix(tmp_path, **{"layers.0.o_proj.weight": torch.randn(128, 96).bfloat16()})
    done = convert(source, tmp_path / "out", "W4A16:group=128")
    assert stored(tmp_path / "out")["layers.0.o_proj.weight"].shape == (128, 96)
    assert "layers.0.o_proj" in config_of(tmp_path / "out")["ignore"]
    assert any("its row length, 96, is not a multiple" in note for note in done.notes)
    with pytest.raises(ConversionError, match="row length, 96"):
        convert(source, tmp_path / "other", "W4A16:group=128", fallback=False)
    assert not (tmp_path / "other").exists()


@each("case", ["W4A16", "W8A16", "GPTQ", "GPTQ-8bit", "AWQ", "AWQ:scaled=no", "W4A16:symmetric=no"])
@each("columns, group", [(576, 64), (96, 32), (1152, 128)])
def test_the_largest_group_that_divides_the_rows_is_used(
    tmp_path: Path, case: str, columns: int, group: int
) -> None:
    source = matrix(tmp_path, columns=columns)
    done = convert(source, tmp_path / "out", case)
    config = config_of(tmp_path / "out")
    made = config.get("config_groups", {}).get("group_0", {}).get("weights", config)
    assert made["group_size"] == group
    assert {item.weight for item in done.plan.items} == {"layers.0.q_proj.weight"}
    assert any(f"groups have {group} values" in note for note in done.notes) == (group != 128)
    before, after = values_in(source), values_in(tmp_path / "out")
    assert relative_error(*before.values(), *after.values()) < 0.2


def test_few_weights_that_do_not_fit_do_not_change_the_group(tmp_path: Path) -> None:
    source = matrix(tmp_path, 1024, **{"layers.0.o_proj.weight": torch.randn(32, 96).bfloat16()})
    done = convert(source, tmp_path / "out", "W4A16")
    assert done.plan.scheme == "W4A16"
    assert any("its row length, 96, is not a multiple" in note for note in done.notes)


@each("case", ["W4A16:group=128", "MXFP4", "NVFP4"])
def test_a_type_that_most_weights_cannot_have_is_refused(tmp_path: Path, case: str) -> None:
    source = matrix(tmp_path, **{"layers.0.o_proj.weight": torch.randn(256, 72).bfloat16()})
    with pytest.raises(ConversionError, match="most weights cannot be stored") as caught:
        convert(source, tmp_path / "out", case)
    assert "group" in caught.value.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("quant", "out", "message"),
    [
        ("W4A16", "out.gguf", "a type for a model directory"),
        ("W4A16", "out.safetensors", "a type for a model directory"),
        ("W4A16:group=48", "out", "the group size of W4A16 cannot be 48"),
        ("FP8:group=32", "out", "does not have the option `group=32`"),
        ("MLX-4bit:symmetric=no", "out", "does not have the option `symmetric=no`"),
        ("W4A17", "out", "neither a recipe nor a type"),
        ("Q4_K", "out", "safetensors cannot store Q4_K"),
        ("MXFP4", "out.safetensors", "safetensors cannot store MXFP4"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, quant: str, out: str, message: str
) -> None:
    with pytest.raises(ConversionError) as caught:
        convert(matrix(tmp_path), tmp_path / out, quant)
    assert message in caught.value.message
    assert caught.value.hint
    assert not (tmp_path / out).exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default = 'W4A16'\n[types]\n'q' = 'Q4_K'\n", "the type of `q` is 'Q4_K'"),
        ("default = 'W4A16'\n[types]\n'q' = 'AWQ'\n", "AWQ is not one of the types that can be"),
        ("default = 'W4A16'\n[types]\n'q(' = 'keep'\n", "q("),
        ("default = 'W4A16'\nbase = 'Q4_K_M'\n", "`base` is not a key"),
        ("default = 'W4A16'\ntypes = 3\n", "`types` is not a table"),
        ("default = 'W4A16:group=3'\n", "the group size of W4A16 cannot be 3"),
    ],
)
def test_an_invalid_recipe_is_refused(tmp_path: Path, text: str, message: str) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(text)
    with pytest.raises(ConversionError) as caught:
        convert(matrix(tmp_path), tmp_path / "out", str(recipe))
    assert message in caught.value.message


def test_a_checkpoint_without_a_config_is_refused(tmp_path: Path) -> None:
    source = matrix(tmp_path)
    (source / "config.json").unlink()
    with pytest.raises(ConversionError, match=r"no config\.json"):
        convert(source, tmp_path / "out", "W4A16")


def test_quantized_weights_are_quantized_again_only_if_allowed(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path / "a", "FP8_DYNAMIC")
    with pytest.raises(ConversionError, match="already quantized"):
        convert(tmp_path / "a", tmp_path / "b", "W4A16")
    convert(tmp_path / "a", tmp_path / "b", "W4A16", allow_requantize=True)
    settings = config_of(tmp_path / "b")
    assert settings["format"] == "pack-quantized"
    before, after = values_in(tmp_path / "a"), values_in(tmp_path / "b")
    name = f"{ATTENTION}q_proj.weight"
    assert relative_error(after[name], before[name]) < MOST["4"]


def test_gguf_becomes_a_directory_with_a_config_and_a_tokenizer(tmp_path: Path) -> None:
    weightctl.convert(small_llama(), tmp_path / "m.gguf", dtype="f16")
    convert(tmp_path / "m.gguf", tmp_path / "out", "W4A16")
    assert config_of(tmp_path / "out")["quant_method"] == "compressed-tensors"
    before, after = values_in(small_llama()), values_in(tmp_path / "out")
    assert before.keys() == after.keys()
    assert stored(tmp_path / "out")["model.norm.weight"].dtype == torch.float16
    name = f"{ATTENTION}q_proj.weight"
    assert relative_error(after[name], before[name]) < MOST["4"]


@pytest.mark.parametrize("case", ["W4A16", "FP8_BLOCK", "NVFP4A16", "GPTQ", "AWQ", "MLX-4bit"])
def test_what_is_written_is_sharded(tmp_path: Path, case: str) -> None:
    convert(small_llama(), tmp_path / "out", case)
    weightctl.shard(tmp_path / "out", tmp_path / "ranks", tp=2)
    whole, gathered = values_in(tmp_path / "out"), values_in(tmp_path / "ranks")
    assert gathered.keys() == whole.keys()
    assert all(torch.equal(gathered[name], whole[name]) for name in whole)


def test_the_plan_is_shown_and_reported(weightctl: Run, tmp_path: Path) -> None:
    done = weightctl("convert", small_llama(), tmp_path / "out", "--quant", "w4a16:group=64", "-n")
    assert done.returncode == 0, done.stderr
    assert "quantized to W4A16:group=64" in done.stdout
    assert "14 weights stored as W4A16:group=64: 42 tensors" in done.stdout
    done = weightctl("convert", small_llama(), tmp_path / "out", "--quant", "MLX-4bit", "--json")
    report = json.loads(done.stdout)
    assert report["scheme"] == "MLX-4bit"
    weights = {tensor["weight"] for tensor in report["tensors"]}
    assert len(weights - {None}) == 14
    done = weightctl("convert", small_llama(), tmp_path / "b", "--quant", "FP8")
    assert "BF16 -> FP8 " in done.stdout
    assert np.isfinite(report["bytes"])


@pytest.mark.parametrize("case", usual(USUAL, CASES))
def test_verify_finds_no_problem_in_what_is_written(
    weightctl: Run, tmp_path: Path, case: str
) -> None:
    convert(small_llama(), tmp_path / "out", case)
    done = weightctl("verify", tmp_path / "out", "--against", small_llama())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no problems found" in done.stdout


def gpt_oss_in(directory: Path) -> Path:
    """Return the path of a tiny model whose experts are stacked."""
    model = transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=32, num_local_experts=4, vocab_size=64,
            layer_types=["sliding_attention"],
        )
    )  # fmt: skip
    model.save_pretrained(directory / "gpt-oss")
    return directory / "gpt-oss"


def test_stacked_experts_are_refused_unless_they_are_kept(tmp_path: Path) -> None:
    source = gpt_oss_in(tmp_path)
    with pytest.raises(ConversionError, match="like the 4 experts in") as caught:
        convert(source, tmp_path / "out", "W4A16:group=32")
    assert "--tensor-type experts=keep" in caught.value.hint
    assert not (tmp_path / "out").exists()
    done = convert(source, tmp_path / "out", "W4A16:group=32", tensor_types={"experts": "keep"})
    assert "model.layers.0.mlp.experts" in config_of(tmp_path / "out")["ignore"]
    made, before = stored(tmp_path / "out"), stored(source)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert torch.equal(made[name], before[name])
    assert {item.weight for item in done.plan.items if item.weight} == {
        f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkvo"
    }


def test_experts_of_gguf_are_written_one_by_one(tmp_path: Path) -> None:
    qwen3moe().save_pretrained(tmp_path / "in")
    weightctl.convert(tmp_path / "in", tmp_path / "m.gguf", quant="Q8_0")
    done = convert(tmp_path / "m.gguf", tmp_path / "out", "W8A16:group=32")
    name = "model.layers.1.mlp.experts.3.down_proj.weight"
    assert {item.is_exact for item in done.plan.items if item.weight == name} == {True}
    weightctl.convert(tmp_path / "out", tmp_path / "back.gguf")
    before, after = (weightctl.open_weights(tmp_path / f"{each}.gguf") for each in ("m", "back"))
    for name in ("ffn_down_exps", "ffn_gate_exps", "ffn_up_exps"):
        one, other = (tree[f"blk.1.{name}.weight"] for tree in (before, after))
        assert other.info.encoding.name == "Q8_0"
        assert np.array_equal(np.from_dlpack(one.data()), np.from_dlpack(other.data()))
