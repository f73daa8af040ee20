"""Kimi Linear and Qwen3.5: dimensions of 1 that differ, and configs of older versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from family_variants import draw_variant, make_variant
from weightctl import WeightData, convert, open_weights
from weightctl.families import FAMILIES, recognize
from weightctl.families.configs import from_hugging_face
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path

TYPE = {"model_type": "kimi_linear"}


def read(**stated: Any) -> Any:
    return from_hugging_face(FAMILIES["kimi_linear"].load(), TYPE | stated, "here").config


# As llama.cpp's script writes tensors, before its quantization leaves these dimensions out.
LONGER = {
    "kimi_linear": {"ssm_conv1d_": 1, "ssm_a": 2},
    "qwen35moe": {"ffn_gate_inp_shexp": 1},
}


@each("family", LONGER)
def test_dimensions_of_1_before_others_mean_nothing(family: str, tmp_path: Path) -> None:
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 32}
    variant = draw_variant(family, 1, **sizes)._replace(dtype="f32", parts=1, is_old=False)
    make_variant(variant, tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "model.gguf", to="gguf")
    own = open_weights(tmp_path / "model.gguf")
    arrays = {name: node.data().to_numpy() for name, node in own.items()}
    given: dict[str, Any] = {}
    for name, array in arrays.items():
        more = next((count for part, count in LONGER[family].items() if part in name), 0)
        given[name] = array.reshape((1,) * more + array.shape)
    tree = as_checkpoint(
        {name: WeightData.from_numpy(array, name) for name, array in given.items()},
        header_of(own).metadata,
    )
    found, expected = recognize(tree), recognize(own)
    found.check()
    for name, tensor in expected.weights.items():
        other = found.weights[name].data().to_numpy()
        assert np.array_equal(other, tensor.data().to_numpy()), name
    if family == "kimi_linear":
        sharding = shard_plan(tree, Grid(2)).shardings["blk.0.ssm_a"]
        assert [sharding.shape((1, 1, 4, 1), rank) for rank in (0, 1)] == [(1, 1, 2, 1)] * 2


def test_older_configs_count_layers_from_1() -> None:
    delta = {
        "full_attn_layers": [2, 4],
        "head_dim": 64,
        "num_heads": 8,
        "short_conv_kernel_size": 3,
    }
    found = read(num_hidden_layers=4, linear_attn_config=delta, first_k_dense_replace=2)
    assert found.delta_layers == (True, False, True, False)
    assert found.sparse_layers == (False, False, True, True)
    assert (found.delta_heads, found.delta_key_size, found.convolution_length) == (8, 64, 3)


def test_heads_that_share_keys_are_refused() -> None:
    with pytest.raises(Exception, match="32 query heads and 8 KV heads"):
        read(num_key_value_heads=8)
