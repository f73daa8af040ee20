from __future__ import annotations

from weightctl import DeviceRef
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.nn import Embedding, LayerList, Linear, Module, RMSNorm


class Block(Module):
    def __init__(self, features: int = 4) -> None:
        self.norm = RMSNorm(features, 1e-5)
        self.up = Linear(features, 8)


class Model(Module):
    def __init__(self) -> None:
        self.layers = LayerList([Block(), Block(), Block(6)])
        self.output = Linear(
            32, 4, dtype=DType.bfloat16, quantization_encoding=QuantizationEncoding.Q8_0
        )
        self.heads = LayerList([])


def test_a_model_reads_as_a_tree_with_layers_that_are_alike_in_one() -> None:
    assert repr(Model()) == (
        "Model(\n"
        "  layers: [\n"
        "    0 to 1: Block(\n"
        "      norm: RMSNorm(weight: float32[4])\n"
        "      up: Linear(weight: float32[8, 4])\n"
        "    )\n"
        "    2: Block(\n"
        "      norm: RMSNorm(weight: float32[6])\n"
        "      up: Linear(weight: float32[8, 6])\n"
        "    )\n"
        "  ]\n"
        "  output: Linear(weight: bfloat16[4, 32] as Q8_0)\n"
        "  heads: []\n"
        ")"
    )


def test_a_layer_tells_its_weights_and_where_they_are() -> None:
    layer = Linear(2, 3, bias=True)
    layer.to(DeviceRef.GPU(0))
    assert repr(layer) == "Linear(weight: float32[3, 2] on gpu:0, bias: float32[3] on gpu:0)"
    assert repr(Embedding(5, 2)) == "Embedding(weight: float32[5, 2])"
    assert repr(Module()) == "Module()"
