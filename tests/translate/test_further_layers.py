"""Tensors of layers that predict further tokens are not converted, which a note says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from family_variants import draw_variant, make_variant
from weightctl import open_weights
from weightctl.translate.plans import plan_of

if TYPE_CHECKING:
    from pathlib import Path

# What checkpoints of each family call such a tensor, with the number behind the last layer.
NAMES = {
    "glm4_moe": "model.layers.{}.eh_proj.weight",
    "exaone_moe": "mtp.layers.0.fc.weight",
    "qwen3next": "mtp.layers.0.input_layernorm.weight",
    "qwen35": "mtp.fc.weight",
    "deepseek_v3": "model.layers.{}.self_attn.o_proj.weight",
}


@pytest.mark.parametrize("family", NAMES)
def test_layers_that_predict_further_tokens_are_named_in_a_note(
    family: str, tmp_path: Path
) -> None:
    stated = {"tie_word_embeddings": False, "rope_parameters": None}
    variant = draw_variant(family, 4, **stated)._replace(parts=1, is_old=False, dtype="f32")
    made = make_variant(variant, tmp_path / "model")
    path = made.path / "model.safetensors"
    name = NAMES[family].format(variant.config["num_hidden_layers"])
    save_file(load_file(path) | {name: np.ones((2, 2), np.float32)}, path)
    plan = plan_of(open_weights(made.path), "gguf")
    (note,) = (note for note in plan.notes if "further tokens" in note)
    assert note.startswith("not written: 1 tensor of layers that predict further tokens")
    assert note.endswith(name)
    assert all(item.info.name.startswith(("blk.", "token", "output")) for item in plan.items)
