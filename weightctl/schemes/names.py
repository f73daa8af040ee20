"""The endings of the names of a weight's tensors, with those that several schemes share.

They are those that the tools themselves write, as their sources say: AutoAWQ, AutoGPTQ,
compressed-tensors, DeepSeek, ModelOpt, transformers, torchao, MLX, quanto, ComfyUI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.schemes.candidate import Candidate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.weights.info import TensorInfo

__all__ = [
    "ACTIVATIONS",
    "COMPRESSED",
    "MLX",
    "QWEIGHT",
    "SCALED",
    "NameEndings",
]


class NameEndings(NamedTuple):
    """How the names of a weight's tensors end, after the name of its layer.

    `scales` ends the one that a weight is found by. `numbers` are packed in one of `encodings`, any
    where none is named. `weight` ends the name of what it represents.
    """

    scales: str
    numbers: str
    weight: str
    encodings: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def gather(
        self,
        scales: TensorInfo,
        tensors: Mapping[str, TensorInfo],
        config: Mapping[str, Any],
        content: Callable[[TensorInfo, TensorInfo], bytes | None],
    ) -> Candidate | None:
        """Return the tensors that belong to these scales, None if they do not match."""
        if not scales.name.endswith(self.scales):
            return None
        layer = scales.name[: -len(self.scales)]
        numbers = tensors.get(layer + self.numbers)
        if numbers is None or (self.encodings and numbers.encoding.name not in self.encodings):
            return None
        others = {
            ending: info
            for ending in self.others
            if (info := tensors.get(layer + ending)) is not None
        }
        return Candidate(layer, numbers, scales, others, config, content)


# They are for activations: the weight is the same without them.
ACTIVATIONS = (
    "input_scale", "input_zero_point", "input_global_scale", "activation_scale", ".scale_input",
    ".input_scale_ub", ".output_scale",
)  # fmt: skip
_F8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_BYTES = (*_F8, "I8", "U8", "F4")

# GPTQ and AWQ differ in shapes alone.
QWEIGHT = NameEndings(".scales", ".qweight", ".weight", ("I32",), (".qzeros", ".g_idx"))
# Integers have biases beside them, floats have none.
MLX = NameEndings(".scales", ".weight", ".weight", ("U32",), (".biases", ".qbiases"))
# Integers are in words of I32, floats in bytes.
COMPRESSED = NameEndings(
    ".weight_scale", ".weight_packed", ".weight", ("I32", "U8"),
    (
        ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".weight_global_scale",
        ".input_scale", ".input_zero_point", ".input_global_scale",
    ),
)  # fmt: skip
# Bytes, or pairs of floats of 4 bits: shapes and encodings say what the scales make of them.
SCALED = (
    NameEndings(
        ".weight_scale", ".weight", ".weight", _BYTES,
        (
            ".weight_scale_2", ".input_scale", ".pre_quant_scale", ".weight_zero_point",
            ".input_zero_point", ".input_scale_ub", ".comfy_quant",
        ),
    ),
    NameEndings(
        ".weight_scale_inv", ".weight", ".weight", _BYTES, (".input_scale", ".activation_scale")
    ),
    NameEndings(".scales", ".weight", ".weight", _BYTES, (".zero_points", ".qzeros")),
    NameEndings(".scale_weight", ".weight", ".weight", _F8, (".scale_input",)),
    NameEndings(".scale", ".weight", ".weight", _BYTES),
    NameEndings(
        "._weight_scale", "._weight_qdata", ".weight", (*_F8, "I8"),
        ("._weight_zero_point", "._weight_act_pre_scale", "._weight_per_tensor_scale"),
    ),
    NameEndings(
        ".weight._scale", ".weight._data", ".weight", (*_F8, "I8"),
        (".input_scale", ".output_scale"),
    ),
    NameEndings("_weight_scale", "", "", _BYTES, ("_weight_scale_2", "_input_scale")),
    NameEndings("_scale_inv", "", "", _BYTES, ("_activation_scale",)),
    NameEndings("_scale", "", "", _BYTES, ("_zero_point", "_input_scale")),
)  # fmt: skip
