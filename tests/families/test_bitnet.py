"""BitNet: what llama.cpp would compute otherwise, and what is not supported."""

from __future__ import annotations

from typing import Any

import pytest

from each import each
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES
from weightctl.families.configs import from_hugging_face
from weightctl.families.written import to_gguf


@each(
    "changes, message",
    [
        ({"hidden_act": "relu2"}, "`activation` is `'relu2'`, but llama.cpp would read `'silu'`"),
        ({"tie_word_embeddings": False}, "its output matrix is not tied to the embedding"),
        ({"attention_bias": True}, "its attention has biases"),
        (
            {"quantization_config": {"quantization_mode": "online"}},
            "weights that are quantized when they are loaded are not supported",
        ),
    ],
)
def test_a_model_that_llama_cpp_would_compute_otherwise_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    usual = {"model_type": "bitnet", "hidden_act": "silu", "tie_word_embeddings": True}
    family = FAMILIES["bitnet"].load()
    with pytest.raises(ArchitectureError, match=message):
        to_gguf(family, from_hugging_face(family, {**usual, **changes}, "here").fields)
