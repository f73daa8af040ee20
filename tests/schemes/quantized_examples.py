"""How the tools store a quantized weight: layer `l`, with the shapes of Llama 3 8B, mostly."""

from __future__ import annotations

import json
import struct

from weightctl.dtype import ENCODINGS
from weightctl.weights import Extent, Header, TensorInfo

STATE = json.dumps({"quant_type": "nf4", "blocksize": 64, "shape": [4096, 14336]}).encode()
CONFIG = {"quantization": {"group_size": 64, "bits": 4, "l.own": {"group_size": 32, "bits": 8}}}

AWQ = "l.qweight I32 14336x512, l.qzeros I32 112x512, l.scales F16 112x4096"
GPTQ = "l.qweight I32 1792x4096, l.qzeros I32 112x512, l.scales F16 112x4096, l.g_idx I32 14336"
PACKED = "l.weight_packed I32 4096x1792, l.weight_scale BF16 4096x112, l.weight_shape I64 2"
DEEPSEEK = "l.weight F8_E4M3 576x7168, l.weight_scale_inv F32 5x56"
MODELOPT = "l.weight U8 4096x7168, l.weight_scale F8_E4M3 4096x896, l.weight_scale_2 F32 1"
MLX = "l.weight U32 4096x1792, l.scales F16 4096x224, l.biases F16 4096x224"
NF4 = (
    "l.weight U8 29360128x1, l.weight.absmax U8 917504, l.weight.quant_map F32 16, "
    "l.weight.nested_absmax F32 3584, l.weight.nested_quant_map F32 256, "
    f"l.weight.quant_state.bitsandbytes__nf4 U8 {len(STATE)}"
)
GPT_OSS = "l.down_proj_blocks U8 32x2880x90x16, l.down_proj_scales U8 32x2880x90"
HQQ = "l.W_q U8 2048x14336, l.scale F16 917504x1, l.zero F16 917504x1, l.shape I64 2, l.nbits I32 1"

# Nothing says the shape of this one.
QUANTO_4_BIT = (
    "l.weight._data._data U8 512x128, l.weight._scale F16 1024x1, l.weight._shift F16 1024x1"
)

# Who stores a weight so, the weight, what the packing is called, and the tensors, numbers first.
TABLE = [
    ("AutoAWQ", "l.weight 4096x14336", "AWQ 4-bit", AWQ),
    ("AutoAWQ GEMV", "l.weight 4096x14336", "AWQ 4-bit",
     "l.qweight I32 4096x1792, l.qzeros I32 4096x14, l.scales F16 4096x112"),
    ("AutoAWQ GEMV fast", "l.weight 4096x14336", "AWQ 4-bit",
     "l.qweight I16 1024x14336, l.scales F16 112x4096, l.scaled_zeros F16 112x4096"),
    ("AutoGPTQ", "l.weight 4096x14336", "GPTQ 4-bit", GPTQ),
    ("AutoGPTQ, 8 bits", "l.weight 4096x14336", "GPTQ 8-bit",
     "l.qweight I32 3584x4096, l.qzeros I32 112x1024, l.scales F16 112x4096"),
    ("AutoGPTQ, 3 bits, one group", "l.weight 4096x14336", "GPTQ 3-bit",
     "l.qweight I32 1344x4096, l.qzeros I32 1x384, l.scales F16 1x4096"),
    ("GPTQ without zeros", "l.weight 4096x14336", "GPTQ 4-bit",
     "l.qweight I32 1792x4096, l.scales F16 112x4096, l.g_idx I32 14336"),
    ("GPTQ with its bits in the config", "l.weight 4096x14336", "GPTQ 4-bit",
     "l.qweight I32 1792x4096, l.scales F16 112x4096"),
    ("compressed-tensors W4A16", "l.weight 4096x14336", "INT4 scaled", PACKED),
    ("compressed-tensors, asymmetric, reordered", "l.weight 4096x14336", "INT4 scaled",
     PACKED + ", l.weight_zero_point I32 512x112, l.weight_g_idx I32 14336"),
    ("compressed-tensors, before it split numbers", "l.weight 4096x14336", "INT3 scaled",
     "l.weight_packed I32 4096x1434, l.weight_scale F16 4096x1, l.weight_shape I64 2"),
    ("compressed-tensors NVFP4", "l.weight 4096x14336", "NVFP4",
     "l.weight_packed U8 4096x7168, l.weight_scale F8_E4M3 4096x896, l.weight_global_scale F32 1"),
    ("compressed-tensors MXFP4", "l.weight 4096x14336", "MXFP4",
     "l.weight_packed U8 4096x7168, l.weight_scale U8 4096x448"),
    ("compressed-tensors MXFP6", "l.weight 4096x14336", "MXFP6",
     "l.weight_packed U8 4096x10752, l.weight_scale U8 4096x448"),
    ("compressed-tensors W8A8", "l.weight 4096x14336", "INT8 scaled",
     "l.weight I8 4096x14336, l.weight_scale F32 4096x1"),
    ("FP8, a scale for the tensor", "l.weight 4096x14336", "F8_E4M3 scaled",
     "l.weight F8_E4M3 4096x14336, l.weight_scale F32 scalar, l.input_scale F32 scalar"),
    ("FP8, a scale for each expert", "l.weight 8x14336x4096", "F8_E4M3 scaled",
     "l.weight F8_E4M3 8x14336x4096, l.weight_scale F32 8"),
    ("DeepSeek V3", "l.weight 576x7168", "F8_E4M3 scaled", DEEPSEEK),
    ("DeepSeek V4, dense", "l.weight 8192x4096", "F8_E4M3 scaled",
     "l.weight F8_E4M3 8192x4096, l.scale F8_E8M0 64x32"),
    ("DeepSeek V4, experts", "l.weight 2048x4096", "MXFP4",
     "l.weight I8 2048x2048, l.scale F8_E8M0 2048x128"),
    ("MXFP8", "l.weight 4096x14336", "MXFP8",
     "l.weight F8_E4M3 4096x14336, l.weight_scale U8 4096x448"),
    ("ModelOpt NVFP4", "l.weight 4096x14336", "NVFP4", MODELOPT),
    ("ModelOpt NVFP4, Llama 4", "l.gate_up_proj 16x5120x16384", "NVFP4",
     "l.gate_up_proj U8 16x2560x16384, l.gate_up_proj_weight_scale F8_E4M3 16x320x16384"),
    ("ModelOpt INT4", "l.weight 4096x14336", "INT4 scaled",
     "l.weight U8 2048x14336, l.weight_scale F32 4096x112, l.pre_quant_scale F16 14336"),
    ("transformers, FP8 experts", "l.down_proj 128x2048x768", "F8_E4M3 scaled",
     "l.down_proj F8_E4M3 128x2048x768, l.down_proj_scale_inv F32 128x16x6"),
    ("FBGEMM, FP8 experts", "l.gate_up_proj 16x5120x16384", "F8_E4M3 scaled",
     "l.gate_up_proj F8_E4M3 16x5120x16384, l.gate_up_proj_scale F32 16x1x16384"),
    ("bytes with zero points", "l.weight 4096x4096", "UINT8 scaled",
     "l.weight U8 4096x4096, l.scales F16 4096x32, l.zero_points U8 4096x32"),
    ("ComfyUI", "l.weight 4096x4096", "F8_E4M3 scaled",
     "l.weight F8_E4M3 4096x4096, l.scale_weight F32 1, l.scale_input F32 1"),
    ("torchao", "l.weight 4096x4096", "F8_E4M3 scaled",
     "l._weight_qdata F8_E4M3 4096x4096, l._weight_scale F32 4096x1"),
    ("quanto", "l.weight 4096x4096", "INT8 scaled",
     "l.weight._data I8 4096x4096, l.weight._scale F32 4096x1, l.input_scale F32 scalar"),
    ("MLX", "l.weight 4096x14336", "MLX 4-bit", MLX),
    ("MLX, a layer with settings of its own", "l.own.weight 4096x4096", "MLX 8-bit",
     "l.own.weight U32 4096x1024, l.own.scales F16 4096x128, l.own.biases F16 4096x128"),
    ("MLX, experts", "l.weight 64x1408x2048", "MLX 6-bit",
     "l.weight U32 64x1408x384, l.scales F16 64x1408x32, l.biases F16 64x1408x32"),
    ("MLX NVFP4", "l.weight 4096x14336", "NVFP4", "l.weight U32 4096x1792, l.scales U8 4096x896"),
    ("llama.cpp NVFP4", "l.weight 4096x14336", "NVFP4",
     "l.weight NVFP4 4096x14336, l.scale F32 1, l.input_scale F32 1"),
    ("llama.cpp NVFP4, experts", "l.weight 64x1408x2048", "NVFP4",
     "l.weight NVFP4 64x1408x2048, l.scale F32 64"),
    ("bitsandbytes NF4", "l.weight 4096x14336", "NF4", NF4),
    ("bitsandbytes NF4 in BF16", "l.weight 4096x14336", "NF4",
     NF4.replace("U8 29360128", "BF16 14680064")),
    ("LLM.int8()", "l.weight 4096x14336", "LLM.int8()",
     "l.weight I8 4096x14336, l.SCB F32 4096, l.weight_format U8 scalar"),
    ("gpt-oss", "l.down_proj 32x2880x2880", "MXFP4", GPT_OSS),
    ("gpt-oss, the original", "l.mlp1_weight 32x5760x2880", "MXFP4",
     "l.mlp1_weight.blocks U8 32x5760x90x16, l.mlp1_weight.scales U8 32x5760x90"),
    ("HQQ", "l.weight 4096x14336", "HQQ 4-bit", HQQ),
    ("ExLlamaV2", "l.weight 4096x14336", "EXL2",
     "l.q_weight I32 1904x4096, l.q_scale I32 448x512, l.q_groups I16 896, l.q_invperm I32 14336"),
    ("ExLlamaV3", "l.weight 4096x14336", "EXL3 2.5-bit",
     "l.trellis I16 896x256x40, l.suh F16 14336, l.svh F16 4096"),
]  # fmt: skip


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split("x")) if text != "scalar" else ()


def header_of(text: str) -> Header:
    tensors: dict[str, TensorInfo] = {}
    for entry in text.split(", "):
        name, encoding, shape = entry.split()
        tensors[name] = TensorInfo(name, numbers(shape), ENCODINGS[encoding])
    extents = {name: Extent(0, 0, info.nbytes) for name, info in tensors.items()}
    return Header("safetensors", ("model.safetensors",), tensors, extents)


def read(name: str) -> bytes:
    """Return what the small tensors of the table hold."""
    if name.endswith(("shape", "nbits")):
        return struct.pack("<qq", 4096, 14336) if name.endswith("shape") else struct.pack("<i", 4)
    return STATE
