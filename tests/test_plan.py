"""What a plan states before a byte is read, and how casting changes it."""

from __future__ import annotations

import numpy as np
import pytest

from weightctl import DType, Plan, WeightData, Weights
from weightctl.codecs.scalar import numpy_dtype
from weightctl.dtype import ENCODINGS, QuantizationEncoding
from weightctl.errors import ConversionError
from weightctl.plan.cast import cast, is_lossy, is_matrix_weight, is_unfit_for_llama_cpp
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.info import TensorInfo
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.tree import Checkpoint
from weightctl.write.save import save
from weightctl.write.targets import target

LLAMA = {"general.architecture": MetadataValue("string", "llama")}
F32, F16, BF16, Q8_0 = (ENCODINGS[name] for name in ("F32", "F16", "BF16", "Q8_0"))


def tree(metadata: dict[str, MetadataValue] | None = None, **shapes: tuple[int, ...]) -> Weights:
    return as_checkpoint(
        {
            name.replace("__", "."): WeightData.from_numpy(np.ones(shape, np.float16), name)
            for name, shape in shapes.items()
        },
        metadata,
    )


def encodings(plan: Plan) -> dict[str, str]:
    return {item.info.name: item.info.encoding.name for item in plan.items}


MODEL = {
    "attn_q__weight": (256, 256),
    "attn_norm__weight": (256,),
    "ffn_gate_inp__weight": (8, 256),
    "attn_q__bias": (256,),
}


def test_a_plan_reads_no_tensor() -> None:
    class Unreadable:
        def __init__(self, weights: Weights) -> None:
            self.header = weights.header

    weights = tree(**MODEL)
    plan = cast(Plan.copy(Checkpoint(Unreadable(weights)), "gguf"), Q8_0)
    assert plan.layouts()[0].nbytes > 0


def test_quantizing_is_for_matrices_and_leaves_the_rest() -> None:
    plan = cast(Plan.copy(tree(**MODEL), "gguf"), Q8_0)
    assert encodings(plan) == {
        "attn_q.weight": "Q8_0",
        "attn_norm.weight": "F16",
        "ffn_gate_inp.weight": "F16",
        "attn_q.bias": "F16",
    }


def test_vectors_become_f32_in_a_model_that_llama_cpp_runs() -> None:
    for encoding in (Q8_0, BF16):
        plan = cast(Plan.copy(tree(LLAMA, **MODEL), "gguf"), encoding)
        assert encodings(plan) == {
            "attn_q.weight": encoding.name,
            "attn_norm.weight": "F32",
            "ffn_gate_inp.weight": "F16",
            "attn_q.bias": "F32",
        }


@pytest.mark.parametrize("format_name", ["gguf", "safetensors"])
def test_a_dtype_is_for_all_tensors_elsewhere(format_name: str) -> None:
    plan = cast(Plan.copy(tree(**MODEL), format_name), BF16)
    assert set(encodings(plan).values()) == {"BF16"}


def test_integers_and_truth_values_stay() -> None:
    weights = as_checkpoint(
        {
            name: WeightData.from_numpy(np.ones((4, 32), name), name)
            for name in ("int64", "bool", "uint8", "complex64", "float32")
        }
    )
    plan = cast(Plan.copy(weights, "safetensors"), BF16)
    assert encodings(plan) == {
        "int64": "I64", "bool": "BOOL", "uint8": "U8", "complex64": "C64", "float32": "BF16",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "row", "taken"),
    [
        ("Q4_K", 256, "Q4_K"), ("Q4_K", 96, "Q5_0"), ("Q4_K", 100, "F16"),
        ("Q5_K", 96, "Q5_1"), ("Q6_K", 96, "Q8_0"), ("Q2_K", 96, "Q4_0"), ("IQ4_XS", 96, "IQ4_NL"),
        ("TQ1_0", 96, "Q4_0"), ("Q8_0", 96, "Q8_0"), ("Q8_0", 100, "F16"), ("Q5_0", 31, "F16"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_take_the_substitute_of_llama_cpp(
    asked: str, row: int, taken: str
) -> None:
    plan = cast(Plan.copy(tree(weight=(2, row)), "gguf"), ENCODINGS[asked])
    (item,) = plan.items
    assert item.info.encoding.name == taken
    assert item.asked == (None if taken == asked else asked)


def test_no_fallback_refuses_a_substitute() -> None:
    with pytest.raises(ConversionError, match="is not a multiple of the Q4_K block size"):
        cast(Plan.copy(tree(weight=(2, 96)), "gguf"), ENCODINGS["Q4_K"], fallback=False)


def test_a_second_loss_is_refused_unless_it_is_wanted() -> None:
    raw = np.zeros((4, 34), np.uint8)
    data = WeightData(raw, "weight", WeightData.from_numpy(raw, "x").dtype, (4, 34),
                      QuantizationEncoding.Q8_0)  # fmt: skip
    plan = Plan.copy(as_checkpoint({"weight": data}), "gguf")
    with pytest.raises(ConversionError, match="already quantized"):
        cast(plan, ENCODINGS["Q5_0"])
    assert encodings(cast(plan, ENCODINGS["Q5_0"], requantize=True)) == {"weight": "Q5_0"}
    assert encodings(cast(plan, BF16)) == {"weight": "BF16"}
    assert encodings(cast(plan, Q8_0)) == {"weight": "Q8_0"}


def test_one_tensor_is_refused_in_the_singular() -> None:
    raw = np.zeros((4, 34), np.uint8)
    data = WeightData(raw, "weight", WeightData.from_numpy(raw, "x").dtype, (4, 34),
                      QuantizationEncoding.Q8_0)  # fmt: skip
    with pytest.raises(ConversionError, match=r"^1 tensor is already quantized"):
        cast(Plan.copy(as_checkpoint({"weight": data}), "gguf"), ENCODINGS["Q5_0"])


def test_what_is_lossy() -> None:
    lossy = {encoding.name for encoding in ENCODINGS.values() if is_lossy(encoding)}
    assert {"Q8_0", "Q4_K", "MXFP4", "F8_E4M3", "F8_E5M2", "F4"} <= lossy
    assert not lossy & {"F64", "F32", "F16", "BF16", "I8", "U8", "BOOL", "C64"}


@pytest.mark.parametrize(
    "name",
    [
        "output_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ssm_conv1d.weight",
        "position_embd.weight", "token_types.weight", "model.layers.0.mlp.gate.weight",
        "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight",
        "transformer.wpe.weight", "blk.0.attn_q.bias", "rope_freqs",
        "encoder.layer.0.attention.output.LayerNorm.weight",
    ],
)  # fmt: skip
def test_what_llama_cpp_never_quantizes(name: str) -> None:
    assert not is_matrix_weight(TensorInfo(name, (256, 256), F32))


@pytest.mark.parametrize(
    "name",
    [
        "output.weight", "token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_gate.weight",
        "blk.0.ffn_gate_exps.weight", "model.layers.0.mlp.gate_proj.weight", "lm_head.weight",
        "model.layers.0.mlp.experts.gate_up_proj", "embeddings.word_embeddings.weight",
    ],
)  # fmt: skip
def test_what_llama_cpp_quantizes(name: str) -> None:
    assert is_matrix_weight(TensorInfo(name, (256, 256), F32))
    assert not is_matrix_weight(TensorInfo(name, (256,), F32))


@pytest.mark.parametrize(
    ("encoding", "number"), [("F32", 0), ("F16", 1), ("Q8_0", 7), ("Q5_0", 8), ("Q4_K", 14),
                             ("BF16", 32)],
)  # fmt: skip
def test_the_file_type_follows_in_a_model_that_llama_cpp_runs(encoding: str, number: int) -> None:
    plan = cast(Plan.copy(tree(LLAMA, **MODEL), "gguf"), ENCODINGS[encoding])
    assert plan.metadata["general.file_type"] == MetadataValue("u32", number)
    has_version = "general.quantization_version" in plan.metadata
    assert has_version == encoding.startswith("Q")


def test_a_copy_keeps_metadata_as_it_is() -> None:
    plan = Plan.copy(tree(LLAMA, **MODEL), "gguf")
    assert plan.metadata == LLAMA


def test_save_reports_progress_in_bytes(tmp_path: object) -> None:
    plan = Plan.copy(tree(weight=(64, 64)), "gguf")
    seen: list[int] = []
    save(plan, target(f"{tmp_path}/out.gguf"), progress=seen.append)
    assert sum(seen) == 64 * 64 * 2


def test_eight_bit_numbers_with_scales_beside_them_are_not_taken_for_weights() -> None:
    names = {"a.weight": "float8_e4m3fn", "a.weight_scale_inv": "float32"}
    weights = as_checkpoint(
        {
            name: WeightData.from_numpy(np.ones((2, 32), numpy_dtype(DType(dtype))), name)
            for name, dtype in names.items()
        }
    )
    with pytest.raises(
        ConversionError, match="2 tensors are packed values or scales of quantized weights"
    ):
        cast(Plan.copy(weights, "safetensors"), BF16)


def test_what_no_codec_does_is_refused_before_anything_is_written() -> None:
    with pytest.raises(
        ConversionError, match="`weight` would be Q8_K, which weightctl cannot encode"
    ):
        cast(Plan.copy(tree(weight=(2, 256)), "gguf"), ENCODINGS["Q8_K"]).layouts()
    raw = np.zeros((4, 36), np.uint8)
    data = WeightData(raw, "weight", DType.uint8, (4, 36), QuantizationEncoding.Q8_1)
    plan = Plan.copy(as_checkpoint({"weight": data}), "safetensors")
    with pytest.raises(ConversionError, match="`weight` is Q8_1, which weightctl cannot decode"):
        cast(plan, BF16).layouts()


def test_a_plan_of_a_node_has_what_is_below_it() -> None:
    plan = Plan.copy(tree(a__weight=(2,), ab__weight=(2,), a__b__c=(2,)).a, "gguf")
    assert [item.info.name for item in plan.items] == ["a.weight", "a.b.c"]


def test_vectors_that_llama_cpp_cannot_use_are_found() -> None:
    plan = Plan.copy(tree(LLAMA, **MODEL), "gguf")
    unfit = [item.info.name for item in plan.items if is_unfit_for_llama_cpp(plan, item)]
    assert unfit == ["attn_norm.weight", "attn_q.bias"]
