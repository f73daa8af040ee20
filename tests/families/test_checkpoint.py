"""What a checkpoint is recognized as, and what is said where it is nothing known or not whole."""

from __future__ import annotations

import json
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import small_models
import tiny
from arrays import stored, weights_of
from each import each
from weightctl import DType, convert, open_weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import ArchitectureError
from weightctl.families.config_values import show_value, show_values_apart
from weightctl.families.model import DescribedModel
from weightctl.families.names import is_matrix_weight, is_projection, layer, role
from weightctl.families.nearest import describe_nearest
from weightctl.families.recognition import recognize
from weightctl.nn.models import build_network
from weightctl.weights import as_checkpoint
from weightctl.weights.info import TensorInfo
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.weights.tree import Checkpoint


SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
LLAMA = {"model_type": "llama", **SIZES}


@pytest.fixture(scope="module")
def tensors() -> dict[str, Any]:
    return small_models.arrays(small_models.llama(**SIZES))


def refused(weights: Checkpoint, config: Any = None) -> str:
    with pytest.raises(ArchitectureError) as caught:
        recognize(weights, config)
    return str(caught.value)


def beside(path: Path, tensors: dict[str, Any], config: bytes | None) -> Checkpoint:
    stored(path / "model.safetensors", **tensors)
    if config is not None:
        (path / "config.json").write_bytes(config)
    return open_weights(path / "model.safetensors")


def test_the_config_beside_a_checkpoint_says_what_it_is(
    tmp_path: Path, tensors: dict[str, Any]
) -> None:
    found = recognize(beside(tmp_path, tensors, json.dumps(LLAMA).encode()))
    assert (found.family.name, found.config.hidden, found.config.kv_heads) == ("llama", 32, 2)
    assert found.weights["norm.weight"].name == "model.norm.weight"


@each(
    "content, message",
    [
        (None, "No such file"),
        (b"", "the file is not valid JSON"),
        (b"{", "the file is not valid JSON"),
        (b"\xff\xfe{}", "the file is not valid JSON"),
        (b"[" * 100_000, "the file is not valid JSON"),
        (b'{"hidden_size": 1' + b"0" * 5000 + b"}", "the file is not valid JSON"),
        (b"[1]", "the file is not a JSON object"),
        (b"{}", "has no `model_type`"),
        (
            b'{"model_type": ["llama"]}',
            (
                "`model_type` is a list of 1 (`'llama'`), a model family that weightctl does not "
                "support"
            ),
        ),
        (
            b'{"model_type": "zamba2"}',
            ("`model_type` is `'zamba2'`, a model family that weightctl does not support"),
        ),
        (
            b'{"model_type": "llama", "model_type": "bert"}',
            ("`model_type` appears twice with different values"),
        ),
        (b'{"model_type": "llama", "hidden_size": -1}', "`hidden_size` is `-1`"),
    ],
)
def test_a_config_that_is_none_is_refused_with_its_path(
    content: bytes | None, message: str, tmp_path: Path, tensors: dict[str, Any]
) -> None:
    error_text = refused(beside(tmp_path, tensors, content))
    assert str(tmp_path / "config.json") in error_text
    assert message in error_text
    assert len(error_text) < 600


def test_a_config_that_is_too_large_is_not_read(tmp_path: Path, tensors: dict[str, Any]) -> None:
    weights = beside(tmp_path, tensors, b"{}")
    os.truncate(tmp_path / "config.json", 1 << 40)
    assert "the file has 1099511627776 bytes" in refused(weights)


def test_a_config_that_is_not_a_file_is_not_waited_for(
    tmp_path: Path, tensors: dict[str, Any]
) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert "not a regular file" in refused(beside(tmp_path, tensors, None))


def test_an_unknown_family_is_named_with_those_that_are_known() -> None:
    error_text = refused(weights_of({"a": np.ones(1)}), {"model_type": "zamba2"})
    assert "zamba2" in error_text
    assert "weightctl ls --families" in error_text
    weights = as_checkpoint({}, {"general.architecture": MetadataValue("string", "rwkv9")})
    assert "`'rwkv9'`" in refused(weights)
    weights = as_checkpoint({}, {"general.architecture": MetadataValue("u32", 7)})
    assert (
        "`general.architecture` is `7`, a model family that weightctl does not support"
        in refused(weights)
    )


def test_tensors_in_memory_need_a_config() -> None:
    assert "pass the content of config.json as `config`" in refused(weights_of({"a": np.ones(1)}))


def test_more_layers_than_tensors_are_refused_before_they_are_named(
    tensors: dict[str, Any],
) -> None:
    error_text = refused(weights_of(tensors), LLAMA | {"num_hidden_layers": 9999})
    assert "states 9,999 layers, but the checkpoint has only 12 tensors" in error_text


def test_all_that_is_missing_or_too_much_or_misshapen_is_named_at_once(
    tensors: dict[str, Any],
) -> None:
    changed = {name: array for name, array in tensors.items() if "down_proj" not in name}
    changed["model.layers.0.mlp.gate_proj.scale"] = np.ones(1, np.float32)
    del changed["model.norm.weight"]
    changed["lm_head.weight"] = np.ones((96, 31), np.float32)
    found = recognize(weights_of(changed), LLAMA)
    assert found.missing == ["model.layers.0.mlp.down_proj.weight", "model.norm.weight"]
    assert found.unexpected == ["model.layers.0.mlp.gate_proj.scale"]
    with pytest.raises(ArchitectureError) as caught:
        build_network(found)
    for name in (*found.missing, *found.unexpected, "lm_head.weight"):
        assert f"`{name}`" in str(caught.value)


def test_all_of_another_shape_are_named_at_once(tensors: dict[str, Any]) -> None:
    found = recognize(weights_of(tensors), LLAMA | {"intermediate_size": 40, "vocab_size": 97})
    with pytest.raises(ArchitectureError) as caught:
        build_network(found)
    error_text = str(caught.value)
    assert "`model.embed_tokens.weight` has shape [96, 32] instead of [97, 32]" in error_text
    for name in ("gate_proj", "up_proj", "down_proj", "lm_head"):
        assert f"{name}.weight` has shape" in error_text
    assert "q_proj" not in error_text


def test_integers_are_not_weights(tensors: dict[str, Any]) -> None:
    changed = tensors | {"model.norm.weight": np.ones(32, np.int32)}
    with pytest.raises(
        ArchitectureError,
        match=r"`model\.norm\.weight` is stored as I32, a type that model weights cannot have",
    ):
        build_network(recognize(weights_of(changed), LLAMA))


def test_a_module_has_its_weights_as_they_are_stored(tensors: dict[str, Any]) -> None:
    changed = tensors | {"model.norm.weight": np.ones(32, np.float16)}
    weights = build_network(recognize(weights_of(changed), LLAMA), DType.float32).raw_state_dict()
    assert weights["norm.weight"].dtype is DType.float16
    assert weights["embedding.weight"].dtype is DType.float32


@pytest.mark.real
def test_blocks_stay_blocks_in_a_module(smollm2: Path) -> None:
    weights = build_network(recognize(open_weights(smollm2))).raw_state_dict()
    down = weights["layers.0.mlp.down.weight"]
    assert str(down.quantization_encoding) == "QuantizationEncoding.Q4_1"
    assert down.original_dtype_and_shape == (DType.float32, [576, 1536])
    assert weights["norm.weight"].quantization_encoding is None


def test_of_two_tensors_of_one_name_the_second_is_too_much(tensors: dict[str, Any]) -> None:
    again = {"norm.weight": tensors["model.norm.weight"]}
    found = recognize(weights_of(again | tensors), LLAMA)
    assert found.unexpected == ["norm.weight"]


def test_a_config_that_is_given_stands_before_all_others(
    tmp_path: Path, tensors: dict[str, Any]
) -> None:
    weights = beside(tmp_path, tensors, b'{"model_type": "zamba2"}')
    assert recognize(weights, LLAMA).missing == []


def test_of_thousands_that_are_too_much_the_first_are_named(tensors: dict[str, Any]) -> None:
    many = {f"extra{number}.weight": np.ones(1, np.float32) for number in range(3000)}
    found = recognize(weights_of(tensors | many), LLAMA)
    assert len(found.unexpected) == 3000
    with pytest.raises(ArchitectureError, match="and 2980 more") as caught:
        build_network(found)
    assert len(str(caught.value)) < 20_000


@each("config", [[1], "llama", 3], ids=str)
def test_a_config_that_is_not_a_mapping_is_refused(config: Any, tensors: dict[str, Any]) -> None:
    assert "which is not a mapping" in refused(weights_of(tensors), config)


def test_a_config_may_be_any_mapping(tensors: dict[str, Any]) -> None:
    assert recognize(weights_of(tensors), MappingProxyType(LLAMA)).config.hidden == 32


# What a model's metadata says of it.


def model(
    architecture: str = "llama", names: tuple[str, ...] = (), **values: Any
) -> DescribedModel:
    metadata = {"general.architecture": MetadataValue("string", architecture)}
    for key, content in values.items():
        metadata[f"{architecture}.{key.replace('__', '.')}"] = MetadataValue("u32", content)
    return DescribedModel.of(metadata, names)


def test_heads_that_share_keys_and_values_are_counted() -> None:
    assert model(attention__head_count=32, attention__head_count_kv=8).group == 4


def test_without_a_count_of_its_own_each_head_has_its_keys() -> None:
    assert model(attention__head_count=32).group == 1


def test_counts_by_layer_are_those_of_the_first() -> None:
    assert model(attention__head_count=[32, 32], attention__head_count_kv=[8, 0]).group == 4
    assert model(attention__head_count=[32], attention__head_count_kv=[0]).group == 0


def test_names_count_the_layers_where_no_value_does() -> None:
    assert model(block_count=7).layers == 7
    assert model(names=("output.weight", "blk.2.attn_q.weight")).layers == 3


def test_values_of_no_sense_count_as_absent() -> None:
    assert model(block_count="many", expert_count=-8, attention__head_count=[]) == DescribedModel(
        "llama", 1, 0, 0, is_70b=False
    )


@each(
    "architecture, layers, shared, expected",
    [("llama", 80, 8, True), ("llama", 80, 64, False), ("llama", 79, 8, False),
     ("qwen2", 80, 64, True), ("jais2", 68, 64, True), ("qwen3", 80, 8, False)],
)  # fmt: skip
def test_what_llama_cpp_takes_for_a_model_of_70_billion(
    architecture: str, layers: int, shared: int, expected: bool
) -> None:
    found = model(
        architecture, block_count=layers, attention__head_count=64, attention__head_count_kv=shared
    )
    assert found.is_70b is expected


# The hint for an unknown family does not lead to a model that computes something else.


def nearest(**document: Any) -> str:
    """Return the hint for a model with the tensors of a llama, and these keys."""
    arrays = small_models.arrays(small_models.llama())
    infos = [TensorInfo(name, each.shape, ENCODINGS["F32"]) for name, each in arrays.items()]
    return describe_nearest(infos, "hugging_face", {"model_type": "lama", **document})


def test_a_key_that_the_nearest_family_does_not_read_is_named() -> None:
    said = nearest(num_hidden_layers=2, residual_factor=0.5)
    assert "the closest is llama, which has 12 of the 12" in said
    assert "but does not read `residual_factor` of the config" in said


def test_the_nearest_family_is_one_that_reads_the_keys() -> None:
    said = nearest(residual_multiplier=0.5)
    assert "the closest is granite, which has 12 of the 12" in said
    assert said.endswith("supports all keys of its config")


def test_a_key_that_says_nothing_is_not_named() -> None:
    assert nearest(use_windows=False, window=None, initializer_range=0.02).endswith(
        "(layer numbers are ignored)"
    )


# How values of a config look in messages.


@each(
    "value, look",
    [
        ((True, False), "a list of 2 (`True, False`)"),
        (["a", 1, None], "a list of 3 (`'a', 1, None`)"),
        ([0] * 100, "a list of 100 (`0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, …`)"),
        ([[1]], "a list"),
        ([], "a list"),
        ({"a": 1}, "a dict"),
    ],
)
def test_a_list_shows_what_it_begins_with(value: object, look: str) -> None:
    assert show_value(value) == look


def test_lists_that_look_alike_are_told_apart_by_the_first_element_that_differs() -> None:
    one, other = [False] * 50, [False] * 50
    other[33] = True
    assert show_values_apart(one, other) == (
        "a list of 50 with element 33 = `False`",
        "a list with element 33 = `True`",
    )


def test_values_that_look_different_are_shown_as_they_are() -> None:
    assert show_values_apart([1], None) == ("a list of 1 (`1`)", "`None`")


# What a tensor's name says of it.


@each(
    "name, expected",
    [
        ("output.weight", "output"),
        ("token_embd.weight", "token_embd"),
        ("per_layer_token_embd.weight", "token_embd"),
        ("blk.3.attn_v.weight", "attn_v"),
        ("blk.3.attn_qkv.weight", "attn_v"),
        ("blk.3.attn_kv_b.weight", "attn_v"),
        ("dec.blk.3.cross_attn_v.weight", "attn_v"),
        ("blk.3.attn_k.weight", "attn_k"),
        ("blk.3.attn_q.weight", "attn_q"),
        ("blk.3.attn_output.weight", "attn_output"),
        ("blk.3.ffn_down.weight", "ffn_down"),
        ("blk.3.ffn_down_exps.weight", "ffn_down"),
        ("blk.3.ffn_gate_up_exps.weight", "ffn_gate"),
        ("blk.3.ffn_up_shexp.weight", "ffn_up"),
    ],
)
def test_a_name_of_ggufs_tells_the_role(name: str, expected: str) -> None:
    assert role(name) == expected


@each(
    "name",
    ["blk.3.attn_v.bias", "blk.3.attn_q_a.weight", "output_norm.weight", "cls.output.weight",
     "model.layers.3.self_attn.v_proj.weight"],
)  # fmt: skip
def test_other_names_have_no_role(name: str) -> None:
    assert role(name) is None


def test_the_layer_is_what_a_name_begins_with() -> None:
    assert layer("blk.12.attn_v.weight") == 12
    assert layer("enc.blk.12.attn_v.weight") is None
    assert layer("output.weight") is None


def test_a_number_that_is_not_one_of_layers_is_none() -> None:
    assert layer("blk." + "9" * 5000 + ".attn_v.weight") is None


def is_quantized(name: str, shape: tuple[int, ...] = (256, 256)) -> bool:
    return is_matrix_weight(TensorInfo(name, shape, ENCODINGS["F32"]))


def test_a_matrix_of_one_row_is_a_vector() -> None:
    assert not is_quantized("blk.0.attn_q.weight", (1, 256))
    assert is_quantized("blk.0.ffn_up_exps.weight", (8, 1, 256))


@each("part", ["first", "w1", "decay_w2", "lerp_fused"])
def test_the_small_matrices_of_recurrent_models_stay(part: str) -> None:
    assert not is_quantized(f"blk.0.time_mix_{part}.weight")


@each("part", ["key", "receptance", "value", "output"])
def test_the_large_ones_do_not(part: str) -> None:
    assert is_quantized(f"blk.0.time_mix_{part}.weight")


@each(
    "name, expected",
    [
        ("layers.1.attn.wq_a.weight", True),
        ("layers.1.attn.indexer.wq_b.weight", True),
        ("layers.1.attn.indexer.weights_proj.weight", False),
        ("model.layers.1.self_attn.indexer.weights_proj.weight", False),
        ("layers.1.attn.compressor.wkv.weight", False),
        ("layers.1.attn.indexer.compressor.wgate.weight", False),
        ("layers.1.attn.compressor.ape", False),
        ("blk.1.hc_attn_fn.weight", False),
        ("hc_head.hc_fn", False),
        ("layers.1.ffn.gate.weight", False),
    ],
)
def test_engines_have_some_matrices_only_unquantized(name: str, expected: bool) -> None:
    assert is_projection(TensorInfo(name, (64, 128), ENCODINGS["F32"])) is expected


# The `model_type` after a way through GGUF, by the case and the `model_type` of the source.


@each(
    "case, source, back",
    [
        ("llama", "llama", "llama"),
        ("llama", "mistral", "mistral"),
        # transformers does not have a class for it.
        ("llama", "internlm3", "llama"),
        ("qwen2", "qwen2", "qwen2"),
    ],
)
def test_a_model_comes_back_as_what_it_was(
    case: str, source: str, back: str, tmp_path: Path
) -> None:
    changes = {"model_type": source, "sliding_window": None, "num_hidden_layers": 1}
    model = tiny.write(tmp_path / "model", case, **changes)
    convert(model, tmp_path / "out.gguf")
    convert(tmp_path / "out.gguf", tmp_path / "back")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["model_type"] == back
    kept = header_of(open_weights(tmp_path / "out.gguf")).metadata.get("weightctl.model_type")
    assert (kept is None) == (back != "mistral")
