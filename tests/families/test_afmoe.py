"""Trinity: what llama.cpp takes for granted, and transformers does not."""

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
        ({"mup_enabled": False}, "`embedding_by_root` is `False`, but llama.cpp would read"),
        (
            {"layer_types": ["sliding_attention", "full_attention"] * 16},
            "its layers with full attention are not exactly every fourth layer",
        ),
        ({"attention_bias": True}, "its attention has biases"),
    ],
)
def test_what_llama_cpp_would_take_for_another_model_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    document = {"model_type": "afmoe", "mup_enabled": True, **changes}
    family = FAMILIES["afmoe"].load()
    with pytest.raises(ArchitectureError, match=message):
        to_gguf(family, from_hugging_face(family, document, "here").fields)
