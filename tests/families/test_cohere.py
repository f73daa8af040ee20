"""Command R+: norms of queries and keys in which each head has weights of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM

from each import each
from runs import executed
from small_models import logits, tokens_below
from weightctl import open_weights
from weightctl.device import CPU
from weightctl.errors import ArchitectureError
from weightctl.families import recognize
from weightctl.families.cohere import FAMILY
from weightctl.families.configs import from_hugging_face
from weightctl.families.written import to_gguf
from weightctl.nn.across_ranks import parallel
from weightctl.nn.models import build_network
from weightctl.split import Grid

if TYPE_CHECKING:
    from pathlib import Path


@each("ranks", [1, 2])
def test_each_head_is_normed_by_its_own_weights(ranks: int, tmp_path: Path) -> None:
    config = CohereConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        use_qk_norm=True, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = CohereForCausalLM._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() > 1 else 1))
    model.save_pretrained(tmp_path)
    found = recognize(open_weights(tmp_path))
    found.check()
    network = build_network(found)
    if ranks > 1:
        network = parallel(network, [CPU] * ranks, grid=Grid(ranks))
    tokens = tokens_below(96, 1, 20)
    (output,) = executed(network.graph(), tokens, weights=found.weights)
    assert np.abs(output - logits(model, tokens)).max() < 1e-4


@each("layers, has_norms", [(64, False), (63, True)])
def test_norms_that_llama_cpp_does_not_expect_are_refused(layers: int, *, has_norms: bool) -> None:
    document = {"model_type": "cohere", "num_hidden_layers": layers, "use_qk_norm": has_norms}
    fields = from_hugging_face(FAMILY, document, "here").fields
    with pytest.raises(ArchitectureError, match=f"it has {layers} layers and"):
        to_gguf(FAMILY, fields)
