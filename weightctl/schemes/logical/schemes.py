"""What the tensors of a quantized weight are called: a line for each way to store one.

The layouts are those that the tools themselves write, as their sources say: AutoAWQ, AutoGPTQ,
compressed-tensors, DeepSeek, ModelOpt, transformers, torchao, MLX, bitsandbytes, gpt-oss, HQQ,
quanto, ComfyUI, ExLlama.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.schemes.logical.packed import (
    awq_fast,
    compressed_tensors,
    exl2,
    exl3,
    gptq_or_awq,
    hqq,
    mlx,
)
from weightctl.schemes.logical.scaled import bitsandbytes, gpt_oss, llm_int8, quanto, scaled
from weightctl.schemes.logical.stored import StoredScheme

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.schemes.logical.stored import Logical
    from weightctl.weights.info import TensorInfo

__all__ = ["SCHEMES", "Scheme", "lines"]


class Scheme(NamedTuple):
    """How the names of a weight's tensors end, after the name of its layer.

    `scales` ends the one that a weight is found by. `numbers` are packed in one of `encodings`,
    any where none is named. `weight` ends the name of what it stands for.
    """

    scales: str
    numbers: str
    weight: str
    layout: Callable[[StoredScheme], Logical | None]
    encodings: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def gather(
        self,
        scales: TensorInfo,
        tensors: Mapping[str, TensorInfo],
        config: Mapping[str, Any],
        content: Callable[[TensorInfo, TensorInfo], bytes | None],
    ) -> StoredScheme | None:
        """Return the tensors that belong to these scales, None where they are of no such weight."""
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
        return StoredScheme(layer, numbers, scales, others, config, content)


_F8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_BYTES = (*_F8, "I8", "U8", "F4")
_COMPRESSED = (
    ".weight_zero_point", ".weight_g_idx", ".weight_global_scale",
    ".input_scale", ".input_zero_point", ".input_global_scale",
)  # fmt: skip
_MODELOPT = (".weight_scale_2", ".input_scale", ".pre_quant_scale")
_OTHERS = (*_MODELOPT, ".weight_zero_point", ".input_zero_point", ".input_scale_ub", ".comfy_quant")
_BITSANDBYTES = (
    ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map",
    ".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4",
)  # fmt: skip
_HQQ = (
    ".shape", ".nbits", ".zero", ".group_size", ".axis", ".packing", ".unpack_view_dtype",
    ".view_as_float", ".quant_scale", ".quant_zero", ".compute_dtype", ".offload_meta",
    ".encoded_state_dict", ".stores_quant_config", ".channel_wise", ".optimize", ".round_zero",
)  # fmt: skip
_EXL2 = (".q_scale_max", ".q_groups", ".q_invperm", ".q_perm", ".q_group_map")
_EXL3 = (".svh", ".mcg", ".mul1")
_QUANTO = (".weight._shift", ".input_scale", ".output_scale")
_TORCHAO = ("._weight_zero_point", "._weight_act_pre_scale", "._weight_per_tensor_scale")

# scales, numbers, weight, layout, encodings of the numbers, others
SCHEMES = (
    Scheme(".scales", ".qweight", ".weight", gptq_or_awq, ("I32",), (".qzeros", ".g_idx")),
    Scheme(".scales", ".qweight", ".weight", awq_fast, ("I16",), (".scaled_zeros",)),
    Scheme(".scales", ".weight", ".weight", mlx, ("U32",), (".biases", ".qbiases")),
    Scheme(".scales", ".weight", ".weight", scaled, _BYTES, (".zero_points", ".qzeros")),
    Scheme(".scales", ".blocks", "", gpt_oss, ("U8",)),
    Scheme("_scales", "_blocks", "", gpt_oss, ("U8",)),
    Scheme(".weight_scale", ".weight", ".weight", scaled, _BYTES, _OTHERS),
    Scheme(
        ".weight_scale", ".weight_packed", ".weight", compressed_tensors, ("I32", "U8"),
        (".weight_shape", *_COMPRESSED),
    ),
    Scheme(
        ".weight_scale_inv", ".weight", ".weight", scaled, _BYTES,
        (".input_scale", ".activation_scale"),
    ),
    Scheme(".scale_weight", ".weight", ".weight", scaled, _F8, (".scale_input",)),
    Scheme(".scale", ".weight", ".weight", scaled, _BYTES),
    Scheme("._weight_scale", "._weight_qdata", ".weight", scaled, (*_F8, "I8"), _TORCHAO),
    Scheme(
        ".weight._scale", ".weight._data", ".weight", scaled, (*_F8, "I8"),
        (".input_scale", ".output_scale"),
    ),
    Scheme(".weight._scale", ".weight._data._data", ".weight", quanto, ("U8",), _QUANTO),
    Scheme("_weight_scale", "", "", scaled, _BYTES, ("_weight_scale_2", "_input_scale")),
    Scheme("_scale_inv", "", "", scaled, _BYTES, ("_activation_scale",)),
    Scheme("_scale", "", "", scaled, _BYTES, ("_zero_point", "_input_scale")),
    Scheme(".SCB", ".weight", ".weight", llm_int8, ("I8",), (".weight_format",)),
    Scheme(".weight.absmax", ".weight", ".weight", bitsandbytes, (), _BITSANDBYTES),
    Scheme(".scale", ".W_q", ".weight", hqq, (), _HQQ),
    Scheme(".q_scale", ".q_weight", ".weight", exl2, ("I32",), _EXL2),
    Scheme(".suh", ".trellis", ".weight", exl3, ("I16",), _EXL3),
)  # fmt: skip


def lines(mark: str) -> tuple[Scheme, ...]:
    """Return the lines for scales of this name, or of any that ends like it after the last dot."""
    return _lines(mark[mark.rfind(".") + 1 :])


@lru_cache(maxsize=256)
def _lines(last: str) -> tuple[Scheme, ...]:
    ending = "." + last
    return tuple(s for s in SCHEMES if ending.endswith(s.scales) or s.scales.endswith(ending))
