"""Products are measured as often as llama.cpp computes them."""

from __future__ import annotations

import numpy as np
import pytest

from weightctl import DType
from weightctl.engine import InferenceSession
from weightctl.graph import Graph, TensorType
from weightctl.nn.models.stream_decoder import StreamCoefficients


@pytest.mark.parametrize("corrects", [False, True])
def test_streams_are_predicted_or_corrected_with_one_matrix(corrects: bool) -> None:
    layer = StreamCoefficients(8, 3, eps=1e-6, dtype=DType.float32)
    layer.name_weights()
    with Graph("coefficients", [TensorType(DType.float32, ("n", 5, 8))]) as graph:
        graph.output(layer(graph.inputs[0], corrects=corrects))
    shapes = {"norm": (8,), "router": (3, 8), "prediction": (9, 3), "correction": (3, 3)}
    registry = {f"{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
    seen: list[str] = []
    session = InferenceSession()
    loaded = session.load(graph, registry, observe=lambda name, _: seen.append(name))
    (made,) = loaded.execute(np.ones((2, 5, 8), np.float32))
    assert made.shape == (2, 5, 3 if corrects else 9)
    assert seen == ["router.weight", "correction.weight" if corrects else "prediction.weight"]
