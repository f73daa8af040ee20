"""Tensors for multi-token prediction are found by their names, whatever the family."""

from __future__ import annotations

import pytest

from each import each
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES
from weightctl.families.configs import from_gguf
from weightctl.families.mtp_tensors import MOST_LAYERS, MtpTensors
from weightctl.weights.metadata import MetadataValue

TRUNK = [f"model.layers.{number}.input_layernorm.weight" for number in range(2)]


@each(
    "names, stated, layers",
    [
        ([], 0, 0),
        (["model.layers.2.eh_proj.weight"], 0, 1),
        (["model.layers.2.eh_proj.weight", "model.layers.2.input_layernorm.weight"], 1, 1),
        # Without such a tensor, a layer may be one that the config should count.
        (["model.layers.2.input_layernorm.weight"], 1, 0),
        (["model.layers.2.input_layernorm.weight", "model.layers.3.eh_proj.weight"], 1, 0),
        (["blk.2.nextn.enorm.weight", "blk.3.nextn.hnorm.weight"], 0, 2),
        # A layer does not follow the others.
        (["model.layers.9.eh_proj.weight"], 0, 0),
        (["model.layers.999999999.eh_proj.weight"], 0, 0),
        (["mtp.fc.weight", "mtp.layers.0.input_layernorm.weight"], 0, 1),
        (["model.mtp.layers.0.enorm.weight", "model.mtp.layers.1.enorm.weight"], 0, 2),
        (["model.mtp_block.0.input_layernorm.weight"], 0, 1),
        # In Nemotron-H, two layers with one mixer each are one.
        (["mtp.layers.0.mixer.q_proj.weight", "mtp.layers.1.mixer.gate.weight"], 1, 1),
        (["language_model.model.layers.2.eh_proj.weight"], 1, 1),
        # A layer is lost, and another one is not.
        (["model.mtp.layers.0.enorm.weight"], 3, 3),
        # Layers of another part of the model have numbers of their own.
        (["vision_tower.layers.2.eh_proj.weight"], 1, 0),
        ([f"mtp.layers.{number}.enorm.weight" for number in range(99)], 0, MOST_LAYERS),
    ],
)
def test_layers_are_counted(names: list[str], stated: int, layers: int) -> None:
    found = MtpTensors.among([*TRUNK, *names], 2, stated)
    assert found.layers == layers
    assert found.names.keys() <= set(names)
    assert len(found.names) == (MOST_LAYERS if layers == MOST_LAYERS else len(names) * bool(layers))
    assert found.is_lost == (stated > 0 and not layers)


@each("further", [2, 3])
def test_a_gguf_with_no_other_layers_is_refused(further: int) -> None:
    family = FAMILIES["glm4_moe"].load()
    metadata = {
        "general.architecture": MetadataValue("string", "glm4moe"),
        "glm4moe.vocab_size": MetadataValue("u32", 8),
        "glm4moe.context_length": MetadataValue("u32", 8),
        "glm4moe.embedding_length": MetadataValue("u32", 8),
        "glm4moe.block_count": MetadataValue("u32", 2),
        "glm4moe.nextn_predict_layers": MetadataValue("u32", further),
    }
    with pytest.raises(ArchitectureError, match=r"`glm4moe\.block_count` is 2, but all of these"):
        from_gguf(family, metadata, {}, "a.gguf")
