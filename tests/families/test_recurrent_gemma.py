"""What is special about RecurrentGemma's config, and its recurrence at its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from each import each
from family_cases import make_checkpoint
from runs import executed
from weightctl import convert
from weightctl.dtype import DType
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES
from weightctl.families.configs import from_hugging_face
from weightctl.families.written import to_hugging_face
from weightctl.graph import Graph, TensorType
from weightctl.nn.recurrent.linear_unit import RealGatedRecurrence

if TYPE_CHECKING:
    from pathlib import Path

FAMILY = FAMILIES["recurrent_gemma"].load()


def read(**keys: Any) -> Any:
    return from_hugging_face(FAMILY, {"model_type": "recurrent_gemma", **keys}, "here")


def test_types_of_layers_repeat_and_are_written_once() -> None:
    found = read(num_hidden_layers=5, block_types=["recurrent", "attention"])
    assert found.config.attention_layers == (False, True, False, True, False)
    written = to_hugging_face(FAMILY, found.fields, "recurrent_gemma")
    assert written["block_types"] == ["recurrent", "attention"]


@each("hidden", [256, 2560, 4096, 7920])
def test_the_factor_of_the_embedding_is_rounded_as_transformers_does(hidden: int) -> None:
    expected = float(torch.tensor(hidden**0.5, dtype=torch.bfloat16))
    found = read(hidden_size=hidden, num_attention_heads=10 if hidden % 10 == 0 else 8)
    assert found.config.embedding_scale == expected


@each(
    "keys, said",
    [
        ({"lru_width": 2561}, "the 2561 channels"),
        ({"block_types": ["recurrent", "ssm"]}, "`'ssm'`"),
        ({"block_types": []}, "block_types"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "no RoPE scaling"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ArchitectureError) as caught:
        read(**keys)
    assert said in str(caught.value)


def test_convert_says_that_llama_cpp_does_not_run_it(crossed: Path, tmp_path: Path) -> None:
    source = make_checkpoint("recurrent_gemma", crossed).path
    report = convert(source, tmp_path / "model.gguf", dtype="f32")
    assert "llama.cpp does not run recurrent_gemma models" in [*report.notes]


@each("bias", [-200.0, 0.0, 200.0])
def test_states_that_do_not_fade_or_fade_at_once_are_numbers(bias: float) -> None:
    unit = RealGatedRecurrence(4, 4, blocks=2, kernel=2, activation="gelu_tanh")
    weights = {
        name: np.ones(tuple(map(int, weight.shape)), np.float32)
        for name, weight in unit.raw_state_dict().items()
    }
    weights["fade_gate.weight"] *= 0
    weights["fade_gate_bias.weight"] *= bias
    with Graph("unit", input_types=[TensorType(DType.float32, (1, 3, 4))]) as graph:
        graph.output(unit(graph.inputs[0]))
    (output,) = executed(graph, np.ones((1, 3, 4), np.float32), weights=weights)
    assert np.isfinite(output).all()
    # What the first position adds is not scaled.
    assert np.abs(output[0, 0]).min() > 1
