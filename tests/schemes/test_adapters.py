"""Descriptions of adapters, in the naming convention of each tool that writes them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightctl.dtype import ENCODINGS
from weightctl.schemes.adapters import Adapter, adapter
from weightctl.weights import Header, TensorInfo
from weightctl.weights.metadata import MetadataValue

Shape = tuple[int, ...]

PEFT = "base_model.model.model.layers.0.self_attn."


def header_of(
    shapes: dict[str, Shape],
    metadata: dict[str, MetadataValue] | None = None,
    form: str = "safetensors",
) -> Header:
    tensors = {name: TensorInfo(name, shape, ENCODINGS["F32"]) for name, shape in shapes.items()}
    return Header(form, ("adapter",), tensors, {}, metadata or {})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((PEFT + "q_proj.lora_A.weight", (16, 4096)), (PEFT + "q_proj.lora_B.weight", (8192, 16))),
        (
            (PEFT + "q_proj.lora_A.default.weight", (16, 4096)),
            (PEFT + "q_proj.lora_B.default.weight", (4096, 16)),
        ),
        (("m.lora_embedding_A", (16, 32000)), ("m.lora_embedding_B", (4096, 16))),
        (("unet.conv.lora_A.weight", (16, 320, 3, 3)), ("unet.conv.lora_B.weight", (8, 16, 1, 1))),
        (
            ("lora_unet_mid_proj_in.lora_down.weight", (16, 1280)),
            ("lora_unet_mid_proj_in.lora_up.weight", (1280, 16)),
        ),
        (("attn1.to_q_lora.down.weight", (16, 320)), ("attn1.to_q_lora.up.weight", (320, 16))),
        (
            ("q_proj.lora_linear_layer.down.weight", (16, 768)),
            ("q_proj.lora_linear_layer.up.weight", (768, 16)),
        ),
        (("model.q_proj.lora_a", (4096, 16)), ("model.q_proj.lora_b", (16, 8192))),
        (("experts.up_proj.lora_a", (8, 16, 2048)), ("experts.up_proj.lora_b", (8, 768, 16))),
    ],
)
def test_the_rank_is_the_dimension_that_a_pair_shares(
    first: tuple[str, Shape], second: tuple[str, Shape]
) -> None:
    assert adapter(header_of(dict([first, second])), {}) == Adapter((16,), 1, "", None)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("blk.0.attn_q.weight.lora_a", (16, 4096)), ("blk.0.attn_q.weight.lora_b", (8192, 16))),
        (
            ("blk.0.ffn_up_exps.weight.lora_a", (8, 16, 2048)),
            ("blk.0.ffn_up_exps.weight.lora_b", (8, 768, 16)),
        ),
        (("token_embd.weight.lora_a", (32000, 16)), ("token_embd.weight.lora_b", (4096, 16))),
    ],
)
def test_in_gguf_the_rank_is_the_innermost_dimension_of_the_second_matrix(
    first: tuple[str, Shape], second: tuple[str, Shape]
) -> None:
    header = header_of(dict([first, second]), form="gguf")
    assert adapter(header, {}) == Adapter((16,), 1, "", None)


def test_ranks_that_differ_are_all_told() -> None:
    shapes = {
        f"layers.{number}.q_proj.lora_{letter}.weight": shape
        for number, rank in enumerate([64, 8, 8])
        for letter, shape in (("A", (rank, 4096)), ("B", (4096, rank)))
    }
    assert adapter(header_of(shapes), {}) == Adapter((8, 64), 3, "", None)


PAIR = {"q.lora_A.weight": (16, 4096), "q.lora_B.weight": (4096, 16)}
LLAMA = "meta-llama/Meta-Llama-3-8B"


@pytest.mark.parametrize(
    ("config", "metadata", "base", "alpha"),
    [
        ({"base_model_name_or_path": LLAMA, "lora_alpha": 32}, {}, LLAMA, 32.0),
        ({"base_model_name_or_path": None, "lora_alpha": "much"}, {}, "", None),
        (
            {},
            {
                "general.type": MetadataValue("string", "adapter"),
                "general.base_model.0.name": MetadataValue("string", "Llama 3 8B"),
                "adapter.type": MetadataValue("string", "lora"),
                "adapter.lora.alpha": MetadataValue("f32", 32.0),
            },
            "Llama 3 8B",
            32.0,
        ),
        (
            {},
            {
                "ss_network_alpha": MetadataValue("text", "8.0"),
                "ss_sd_model_name": MetadataValue("text", "v1-5.safetensors"),
            },
            "v1-5.safetensors",
            8.0,
        ),
        ({}, {"ss_network_alpha": MetadataValue("text", "None")}, "", None),
        (
            {"lora_alpha": float("inf")},
            {"adapter.lora.alpha": MetadataValue("f32", "nan")},
            "",
            None,
        ),
        ({"lora_alpha": 10**400}, {"general.base_model.0.name": MetadataValue("u32", 7)}, "", None),
    ],
)
def test_base_and_alpha_are_those_that_something_names(
    config: dict[str, Any], metadata: dict[str, MetadataValue], base: str, alpha: float | None
) -> None:
    assert adapter(header_of(PAIR, metadata), config) == Adapter((16,), 1, base, alpha)


@pytest.mark.parametrize(
    "shapes",
    [
        {},
        {"model.layers.0.self_attn.q_proj.weight": (4096, 4096)},
        {"q.lora_B.weight": (4096, 16)},
        {"q.lora_A.weight": (16, 4096)},
        {"q.lora_A.weight": (8, 4096), "q.lora_B.weight": (4096, 16)},
        {"q.lora_A.weight": (0, 4096), "q.lora_B.weight": (4096, 0)},
        {"q.lora_A.weight": (4096,), "q.lora_B.weight": (16,)},
        {"blk.0.time_mix_w1.lora.weight": (16, 4096)},
    ],
)
def test_a_checkpoint_without_pairs_is_not_an_adapter(shapes: dict[str, Shape]) -> None:
    assert adapter(header_of(shapes), {"lora_alpha": 16}) is None


NAMES = [
    f"m.{name}"
    for name in (
        "lora_A.weight", "lora_B.weight", "lora_a", "lora_b", "lora_up.weight", "lora_down.weight",
        "lora_embedding_A", "lora_embedding_B", "lora.up.weight", "lora.down.weight",
    )
]  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.lists(st.sampled_from([0, 1, 8, 16, 2**63]), max_size=4).map(tuple),
    ),
    st.sampled_from(["gguf", "safetensors"]),
    st.none() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
)
def test_no_header_makes_it_fail(shapes: dict[str, Shape], form: str, content: Any) -> None:
    metadata = {"adapter.lora.alpha": MetadataValue("f32", content)}
    config = {"lora_alpha": content, "base_model_name_or_path": content}
    found = adapter(header_of(shapes, metadata, form), config)
    assert found is None or (found.matrices > 0 and min(found.ranks) > 0)
