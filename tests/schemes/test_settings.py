"""Quantization settings beside a checkpoint: each is used, known to be harmless, or refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import quantized_examples as examples
import weightctl
from each import each
from lazy import save_file, torch
from packers import gptq, levels_of, numbers, opened, plain, same, scales_of, settings, stream
from weightctl.errors import ConversionError
from weightctl.schemes import WRITTEN
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.schemes.matching import refuse_separated
from weightctl.schemes.settings import Settings
from weightctl.system.registry import load

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.schemes.scheme import WrittenScheme

FP8 = torch.float8_e4m3fn
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"], "input_activations": None, "output_activations": None,
            "weights": {
                "num_bits": 4, "type": "int", "symmetric": True, "group_size": 128,
                "strategy": "group", "block_structure": None, "dynamic": False, "actorder": None,
                "observer": "minmax", "observer_kwargs": {},
            },
        }
    },
    "global_compression_ratio": 1.9, "ignore": ["lm_head"], "kv_cache_scheme": None,
    "quantization_status": "compressed", "sparsity_config": {}, "transform_config": {},
    "version": "0.11.0",
}  # fmt: skip
# The settings of releases, without long lists of modules.
RELEASES: dict[str, dict[str, Any]] = {
    "compressed-tensors": COMPRESSED,
    "llmcompressor, dense": COMPRESSED | {
        "sparsity_config": {
            "format": "dense", "global_sparsity": 0.14, "sparsity_structure": "unstructured",
            "ignore": [], "targets": [],
        }
    },
    "DeepSeek-V3.1": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
        "scale_fmt": "ue8m0", "weight_block_size": [128, 128],
    },
    "TheBloke, GPTQ": {
        "batch_size": 1, "bits": 4, "block_name_to_quantize": "model.layers",
        "cache_block_outputs": True, "damp_percent": 0.1, "dataset": None, "desc_act": True,
        "exllama_config": {"version": 1}, "group_size": 128, "max_input_length": None,
        "model_seqlen": 4096, "module_name_preceding_first_block": ["model.embed_tokens"],
        "modules_in_block_to_quantize": None, "pad_token_id": None, "quant_method": "gptq",
        "sym": True, "tokenizer": None, "true_sequential": True, "use_cuda_fp16": True,
        "use_exllama": True, "model_name_or_path": None, "model_file_base_name": "model",
        "is_marlin_format": False, "static_groups": False,
    },
    "GPTQModel": {
        "bits": 4, "checkpoint_format": "gptq", "desc_act": True, "group_size": 32,
        "lm_head": False, "pack_dtype": "int32", "quant_method": "gptq", "sym": True,
        "dynamic": {"-:.*mlp.gate$": {}, "+:.*down.*": {"bits": 8, "group_size": 64}},
        "meta": {"damp_percent": 0.1, "mse": 0.0, "quantizer": ["gptqmodel:4.0.0"]},
    },
    "AutoAWQ": {
        "bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq",
        "version": "gemm", "zero_point": True, "do_fuse": False, "fuse_max_seq_len": None,
    },
    "bitsandbytes": {
        "_load_in_4bit": True, "_load_in_8bit": False, "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True, "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_has_fp16_weight": False, "llm_int8_skip_modules": None,
        "llm_int8_threshold": 6.0, "load_in_4bit": True, "load_in_8bit": False,
        "quant_method": "bitsandbytes",
    },
    "ModelOpt": {
        "config_groups": {
            "group_0": {
                "input_activations": {"dynamic": False, "num_bits": 4, "type": "float",
                                      "group_size": 16},
                "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
                "targets": ["Linear"],
            }
        },
        "ignore": ["lm_head"], "quant_algo": "NVFP4", "quant_method": "modelopt",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "producer": {"name": "modelopt", "version": "0.29.0"},
    },
    "AutoRound": {
        "autoround_version": "0.5.1", "batch_size": 8, "bits": 4, "data_type": "int",
        "extra_config": {"model.layers.0.mlp.gate": {"bits": 16, "data_type": "float"}},
        "gradient_accumulate_steps": 1, "group_size": 128, "iters": 200, "lr": 0.005,
        "low_gpu_mem_usage": True, "nsamples": 512, "packing_format": "auto_round:auto_gptq",
        "quant_method": "auto-round", "seqlen": 2048, "sym": True, "to_quant_block_names": None,
        "block_name_to_quantize": "model.layers", "enable_quanted_input": False,
    },
    "Quark": {
        "algo_config": None, "exclude": ["lm_head"], "quant_method": "quark",
        "export": {"kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder",
                   "weight_format": "real_quantized", "weight_merge_groups": None},
        "global_quant_config": {
            "bias": None, "output_tensors": None, "target_device": None,
            "input_tensors": {"dtype": "fp4", "is_dynamic": True},
            "weight": {
                "ch_axis": -1, "dtype": "fp4", "group_size": 32, "is_dynamic": False,
                "observer_cls": "PerBlockMXObserver", "qscheme": "per_group",
                "round_method": "half_even", "scale_calculation_mode": "even",
                "scale_format": "e8m0", "scale_type": "float", "symmetric": None,
            },
        },
        "kv_cache_quant_config": {}, "layer_quant_config": {}, "layer_type_quant_config": {},
        "quant_mode": "eager_mode", "softmax_quant_spec": None, "version": "0.10",
    },
    "gpt-oss": {
        "modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4",
    },
    "BitNet": {
        "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline",
    },
    "torchao": {
        "include_input_output_embeddings": False, "modules_to_not_convert": None,
        "quant_method": "torchao", "quant_type_kwargs": {}, "untie_embedding_weights": False,
        "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_version": 1}},
    },
    "MLX": {
        "group_size": 64, "bits": 4, "mode": "affine", "l": {"group_size": 32, "bits": 8},
        "m": False, "n": True,
    },
}  # fmt: skip


@each("name", RELEASES)
def test_settings_of_releases_are_known(name: str) -> None:
    found = Settings({"quantization_config": RELEASES[name]})
    assert found.refuse_unknown(["l", "m", "n"]) == ()


@each("name", WRITTEN)
def test_settings_that_we_write_are_known(name: str) -> None:
    record: WrittenScheme = load(WRITTEN[name])
    written = record.settings(record.defaults, ["lm_head"])
    assert Settings({record.keys[0]: written}).refuse_unknown([]) == ()


@pytest.mark.long
def test_settings_that_transformers_writes_are_known() -> None:
    from transformers.utils import quantization_config as library

    made = [
        library.GPTQConfig(4), library.AwqConfig(), library.BitsAndBytesConfig(load_in_4bit=True),
        library.FbgemmFp8Config(), library.FineGrainedFP8Config(), library.BitNetQuantConfig(),
        library.Mxfp4Config(), library.QuantoConfig(), library.AutoRoundConfig(),
    ]  # fmt: skip
    for each_config in made:
        Settings({"quantization_config": each_config.to_dict()}).refuse_unknown([])


@each(
    "changed, named",
    [
        ({"transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}}, "transform_config"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, r"sparsity_config\.format"),
        ({"sparsity_config": {"format": "float-quantized"}}, r"sparsity_config\.format"),
        ({"format": "marlin-24"}, "format"),
        ({"quant_method": "vptq"}, "quant_method"),
        ({"zero_point": False}, "zero_point"),
        ({"pack_dtype": "int16"}, "pack_dtype"),
        ({"is_marlin_format": True}, "is_marlin_format"),
        ({"use_rms_norm": True}, "use_rms_norm"),
        ({"rotation": "hadamard"}, "rotation"),
        ({"adapter": {"rank": 64}}, "adapter"),
        ({"model.layers.7.mlp": {"bits": 8}}, r"model\.layers\.7\.mlp"),
        ({"l": {"bits": 8, "rotation": "x"}}, "l: rotation"),
        ({"dynamic": {"+:.*": {"rotation": "x"}}}, r"dynamic\.\+:\.\*\.rotation"),
        (
            {"config_groups": {"a": {"weights": {"rotated": 1}}}},
            r"config_groups\.a\.weights\.rotated",
        ),
    ],
)
def test_settings_that_are_not_known_are_refused(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    tensors = {"l.weight": torch.ones(4, 32).to(FP8), "l.weight_scale": torch.ones(1)}
    with pytest.raises(ConversionError, match=rf"config\.json .*`{named}`"):
        plain(tmp_path, tensors, {"quant_method": "fp8", **changed})


def test_settings_without_quantized_tensors_are_refused_too(tmp_path: Path) -> None:
    config = settings("compressed-tensors", transform_config={"config_groups": {"R1": {}}})
    with pytest.raises(ConversionError, match="transform_config"):
        plain(tmp_path, {"l.weight": torch.ones(4, 32)}, config)


@each("bits", [2, 3, 4, 8])
@each("less", [0, 1])
@each("form", ["gptq", "gptq_v2"])
def test_zero_points_of_symmetric_gptq_are_the_middle(
    tmp_path: Path, bits: int, less: int, form: str
) -> None:
    middle, levels = 1 << (bits - 1), levels_of(1, (64, 64), bits)
    scales = scales_of(3, (2, 64))
    tensors = gptq(levels, torch.full((2, 64), middle), scales, bits, less=less)
    config = settings("gptq", bits=bits, group_size=32, sym=True, checkpoint_format=form)
    wanted = ((levels - middle).float() * scales[torch.arange(64) // 32].float()).T
    assert same(numbers(plain(tmp_path, tensors, config), "l.weight"), wanted)


def test_other_zero_points_than_a_symmetric_range_has_are_refused(tmp_path: Path) -> None:
    zeros = torch.full((2, 64), 8)
    zeros[1, 63] = 5
    tensors = gptq(levels_of(1, (64, 64), 4), zeros, scales_of(3, (2, 64)), 4)
    tree = plain(tmp_path, tensors, settings("gptq", sym=True, group_size=32))
    with pytest.raises(ConversionError, match=r"l\.qzeros.* stores the zero point 4"):
        numbers(tree, "l.weight")


@each(
    "config, named",
    [
        (settings("gptq", desc_act=True), "desc_act"),
        (settings("gptq", bits=8), "states 8 bits"),
    ],
)
def test_settings_that_contradict_the_tensors_are_refused(
    tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    tensors = gptq(levels_of(1, (64, 64), 4), torch.full((1, 64), 8), scales_of(3, (1, 64)), 4)
    with pytest.raises(ConversionError, match=named):
        plain(tmp_path, tensors, config)


def mlx(layer: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return a weight of 64x256 in 8 bits and groups of 32, which fits 64x512 in 4 bits, too."""
    levels = levels_of(1, (64, 256), 8)
    scales, biases = scales_of(3, (64, 8)), -scales_of(4, (64, 8))
    tensors = {
        f"{layer}.weight": stream(levels, 8).view(torch.uint32),
        f"{layer}.scales": scales, f"{layer}.biases": biases,
    }  # fmt: skip
    index = torch.arange(256) // 32
    return tensors, levels.float() * scales[:, index].float() + biases[:, index].float()


LAYER = "model.layers.0.mlp.up_proj"


@each("key", ["language_model.model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj", LAYER])
def test_settings_of_a_layer_are_found_under_the_names_of_mlx(tmp_path: Path, key: str) -> None:
    tensors, wanted = mlx(LAYER)
    other, _ = mlx("model.layers.1.mlp.up_proj")
    own = {"group_size": 32, "bits": 8}
    config = {"group_size": 64, "bits": 4, key: own, key.replace(".0.", ".1."): own}
    tree = plain(tmp_path, tensors | other, config)
    assert same(numbers(tree, f"{LAYER}.weight"), wanted)
    assert [f"`{key}`" in note for note in tree.header.notes] == ([True] if key != LAYER else [])


@each("key", ["vision.layers.1.mlp.up_proj", "mlp.up_proj", "model.layers.0.mlp.gate_proj"])
def test_settings_of_a_layer_that_is_not_found_are_refused(tmp_path: Path, key: str) -> None:
    tensors, _ = mlx(LAYER)
    with pytest.raises(ConversionError, match=key):
        plain(tmp_path, tensors, {"group_size": 64, "bits": 4, key: {"group_size": 32, "bits": 8}})


def test_settings_in_a_file_of_an_older_tool_are_used(tmp_path: Path) -> None:
    levels, zeros = levels_of(1, (64, 64), 4), levels_of(2, (2, 64), 4)
    scales = scales_of(3, (2, 64))
    weights = opened(tmp_path, gptq(levels, zeros, scales, 4, less=0), {})
    content = {"bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2", "sym": False}
    (tmp_path / "quantize_config.json").write_text(json.dumps(content))
    index = torch.arange(64) // 32
    wanted = ((levels - zeros[index]).float() * scales[index].float()).T
    tree = dequantize_weights(weights, in_blocks=False)
    assert same(numbers(tree, "l.weight"), wanted)
    (tmp_path / "quantize_config.json").write_text(json.dumps(content | {"rotation": "hadamard"}))
    with pytest.raises(ConversionError, match=r"quantize_config\.json .*`rotation`"):
        dequantize_weights(weights, in_blocks=False)


def test_formats_that_comfyui_states_in_the_metadata_are_known_or_refused(tmp_path: Path) -> None:
    tensors = {
        "l.weight": torch.ones(4, 32).to(FP8), "l.weight_scale": torch.full((), 2.0),
        "scaled_fp8": torch.zeros(2).to(FP8),
    }  # fmt: skip
    for form, is_known in (("float8_e4m3fn", True), ("nvfp4", False)):
        stated = json.dumps({"format_version": "1.0", "layers": {"l": {"format": form}}})
        path = tmp_path / "m.safetensors"
        save_file(tensors, path, {"_quantization_metadata": stated, "a": "b"})
        if is_known:
            tree = dequantize_weights(weightctl.open_weights(path), in_blocks=False)
            assert list(tree.header.tensors) == ["l.weight"]
            assert [*tree.header.metadata] == ["a"]
        else:
            with pytest.raises(ConversionError, match="nvfp4"):
                dequantize_weights(weightctl.open_weights(path), in_blocks=False)


@each("options", [{"include": "*.weight"}, {"exclude": "*_scale"}, {"exclude": "*_zero_point"}])
def test_patterns_do_not_separate_a_weight_from_its_scales(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    tensors = {
        "l.weight": torch.ones(4, 32).byte(), "l.weight_scale": torch.ones(4, 1),
        "l.weight_zero_point": torch.ones(4, 1).byte(), "l.input_scale": torch.ones(1),
        "a.weight": torch.ones(3),
    }  # fmt: skip
    opened(tmp_path, tensors)
    source, out = tmp_path / "m.safetensors", tmp_path / "out.safetensors"
    with pytest.raises(ConversionError, match=r"`l\.weight.* are one quantized weight") as caught:
        weightctl.convert(source, out, **options)
    assert "`l.*`" in caught.value.hint
    if "exclude" in options:
        with pytest.raises(ConversionError, match="are one quantized weight"):
            weightctl.edit(source, drop=options["exclude"])
    for pattern in ("l.*", "*.input_scale", "a.weight"):
        weightctl.convert(source, out, exclude=pattern, force=True)
    weightctl.edit(out, drop="l.*")
    assert set(weightctl.open_weights(source).header.tensors) == {*tensors}


@each("tensors", [row[3] for row in examples.TABLE])
def test_tensors_of_no_scheme_are_separated(tensors: str) -> None:
    infos = examples.header_of(tensors).tensors
    first = next(iter(infos))
    refuse_separated(infos, infos)
    refuse_separated(infos, ())
    with pytest.raises(ConversionError, match=f"`{first}`"):
        refuse_separated(infos, {first})
    with pytest.raises(ConversionError, match=f"`{first}`"):
        refuse_separated(infos, infos.keys() - {first})


FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")


@each("quant", [None, "FP8"])
def test_nothing_states_another_quantization_than_that_of_the_output(
    tmp_path: Path, quant: str | None
) -> None:
    model = tmp_path / "model"
    name = "model.layers.0.mlp.up_proj"
    tensors = {
        f"{name}.weight": torch.ones(128, 128).to(FP8),
        f"{name}.weight_scale_inv": torch.full((1, 1), 2.0), "scaled_fp8": torch.zeros(2).to(FP8),
    }  # fmt: skip
    stated = settings("fp8", weight_block_size=[128, 128], fmt="e4m3")
    opened(model, tensors)
    text = {"quantization_config": stated, "hidden_size": 128}
    config = {"text_config": text, "dtype": "float16"}
    (model / "config.json").write_text(json.dumps(config))
    for file in FILES:
        (model / file).write_text('{"bits": 4, "quantization": {"quant_algo": "FP8"}}')
    options: dict[str, Any] = {"dtype": "f16"} if quant is None else {"quant": quant}
    weightctl.convert(model, tmp_path / "out", allow_requantize=bool(quant), **options)
    made = json.loads((tmp_path / "out" / "config.json").read_text())
    assert made["text_config"] == {"hidden_size": 128}
    assert ("quantization_config" in made) == bool(quant)
    assert not [file for file in FILES if (tmp_path / "out" / file).exists()]
    assert "scaled_fp8" not in weightctl.open_weights(tmp_path / "out").header.tensors
    weightctl.convert(model, tmp_path / "same")
    assert [file for file in FILES if (tmp_path / "same" / file).exists()] == [*FILES]
