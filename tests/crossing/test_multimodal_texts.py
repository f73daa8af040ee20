"""The text models of whole multimodal checkpoints, as transformers computes and saves them."""

from __future__ import annotations

import json
from shutil import copytree
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from each import usual
from lazy import load_file, save_file, torch, transformers
from llama_cpp import ask, mean_divergence
from multimodal import TINY_TEXT, fill, make_tokenizer
from runs import executed
from weightctl import convert, open_weights
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES, recognize
from weightctl.nn.models import build_network

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


class Whole(NamedTuple):
    """What a model is made of: the configs of its text model and of its encoders.

    `is_flat` states that the keys of the text model are beside those of the encoders.
    `outer` is the key of the object that has both, if there is one, and `no_llama_cpp` why
    it is not converted to GGUF.
    """

    text: dict[str, Any]
    others: dict[str, Any]
    outer: str = ""
    is_flat: bool = False
    no_llama_cpp: str = ""


SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
HALF = {**SECTIONS, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
# Pairs take turns: llama.cpp does not rotate those that no section contains.
TURNS = {**SECTIONS, "mrope_section": [3, 3, 2], "mrope_interleaved": True}
EYE = {"depth": 1, "num_heads": 2, "hidden_size": 32, "intermediate_size": 32,
       "out_hidden_size": 64}  # fmt: skip
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2}  # fmt: skip
QWEN_EAR = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32,
            "output_dim": 64}  # fmt: skip
OMNI = {"vision_config": EYE, "audio_config": QWEN_EAR}
QWEN_3 = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
          "rope_parameters": TURNS}  # fmt: skip
PALI = {"vision_config": {**SMALL, "image_size": 28, "patch_size": 14}, "projection_dim": 64}
PREFIX = "images and prompts of PaliGemma attend to later tokens"
MODELS = {
    "glm4v": Whole({"rope_parameters": HALF}, {"vision_config": EYE}),
    "glm4v_moe": Whole({**EXPERTS, "rope_parameters": HALF}, {"vision_config": EYE}),
    "glm_ocr": Whole({"rope_parameters": SECTIONS}, {"vision_config": EYE}),
    "deepseek_ocr2": Whole(
        {**EXPERTS, "num_key_value_heads": 4, "mlp_layer_types": ["dense", "sparse"]},
        {
            "vision_config": {
                "sam_config": {
                    **SMALL,
                    "output_channels": 16,
                    "global_attn_indexes": [0],
                    "image_size": 64,
                    "downsample_channels": [16, 64],
                },
                "encoder_config": {**SMALL, "hidden_size": 64},
            }
        },
    ),
    "lfm2_vl": Whole(
        {"layer_types": ["conv", "full_attention"], "tie_word_embeddings": False},
        {
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            }
        },
    ),
    "paligemma": Whole({"model_type": "gemma"}, PALI, no_llama_cpp=PREFIX),
    "paligemma2": Whole(
        {"model_type": "gemma2", "query_pre_attn_scalar": 16, "sliding_window": 16},
        PALI,
        no_llama_cpp=PREFIX,
    ),
    "phi4_multimodal": Whole(
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
            }
        },
        {
            "vision_config": {**SMALL, "image_size": 28, "crop_size": 28},
            "audio_config": {**SMALL, "num_blocks": 1, "ext_pw_out_channel": 32},
        },
        is_flat=True,
    ),
    "qwen2_5_omni_thinker": Whole({"rope_parameters": SECTIONS}, OMNI),
    "qwen2_5_omni": Whole({"rope_parameters": SECTIONS}, OMNI, "thinker_config"),
    "qwen3_omni_moe_thinker": Whole(QWEN_3, OMNI),
    "qwen3_omni_moe": Whole(QWEN_3, OMNI, "thinker_config"),
    "qwen3_asr": Whole({"rope_parameters": TURNS}, {"audio_config": QWEN_EAR}),
}
# The types of other cases than the first one of a type.
KINDS = {"paligemma2": "paligemma"}


def save(kind: str, into: Path) -> tuple[list[int], NDArray[np.float32]]:
    """Save a model; return the numbers of some tokens, and their logits."""
    tokenizer = make_tokenizer()
    given, kind = MODELS[kind], KINDS.get(kind, kind)
    text = {**TINY_TEXT, "hidden_size": 64, "head_dim": 16, "vocab_size": len(tokenizer)}
    text |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0) | given.text
    parts = {**(text if given.is_flat else {"text_config": text}), **given.others}
    if given.outer:  # models that also speak, here without the part for that
        parts = {given.outer: parts, "enable_audio_output": False}
    config = transformers.CONFIG_MAPPING[kind](**parts)
    line = next(line for line in FAMILIES.values() if kind in line.model_types)
    maker = getattr(transformers, line.load().model_types[kind].class_name)
    torch.manual_seed(0)
    model = maker._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    fill(model, torch.float32)
    tokens = torch.randint(8, len(tokenizer) - 8, (40,))
    with torch.no_grad():
        expected = getattr(model, "thinker", model)(tokens[None]).logits[0].numpy()
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)
    return tokens.tolist(), expected


def assert_runs(path: Path, tokens: list[int], expected: NDArray[np.float32]) -> None:
    found = recognize(open_weights(path))
    network = build_network(found)
    (made,) = executed(network.graph(), np.array([tokens]), weights=found.weights)
    assert np.abs(made[0] - expected).max() < 1e-4


@pytest.mark.parametrize("kind", usual(["glm4v"], MODELS))
def test_the_text_model_of_a_whole_checkpoint_is_run_and_comes_back(
    kind: str, tmp_path: Path
) -> None:
    tokens, expected = save(kind, tmp_path / "hf")
    assert_runs(tmp_path / "hf", tokens, expected)
    if reason := MODELS[kind].no_llama_cpp:
        with pytest.raises(ArchitectureError, match=reason):
            convert(tmp_path / "hf", tmp_path / "text.gguf", to="gguf")
        return
    convert(tmp_path / "hf", tmp_path / "text.gguf", to="gguf")
    assert_runs(tmp_path / "text.gguf", tokens, expected)
    (made,) = ask(tmp_path / "text.gguf", ("logits", tokens), context=512)
    assert mean_divergence(expected, made) < 2e-5
    convert(tmp_path / "text.gguf", tmp_path / "back")
    own, back = (
        {name: node.data().to_numpy().tobytes() for name, node in found.weights.items()}
        for found in (recognize(open_weights(tmp_path / each)) for each in ("hf", "back"))
    )
    assert own == back


def test_adapters_for_images_and_for_speech_are_left_out(tmp_path: Path) -> None:
    # As the original checkpoints of Phi-4-multimodal have them.
    save("phi4_multimodal", tmp_path / "hf")
    plain = load_file(tmp_path / "hf" / "model.safetensors")
    tensors: dict[str, Any] = {}
    for name, tensor in plain.items():
        is_of_text = name.startswith("model.layers.")
        stem, word, last = name.partition("_proj.") if is_of_text else (name, "", "")
        tensors[f"{stem}{word}base_layer.{last}" if word else name] = tensor
        if word:
            for kind in ("speech", "vision"):
                tensors[f"{stem}{word}lora_A.{kind}.weight"] = torch.ones(4, tensor.shape[1])
                tensors[f"{stem}{word}lora_B.{kind}.weight"] = torch.ones(tensor.shape[0], 4)
    copytree(tmp_path / "hf", tmp_path / "original")
    save_file(tensors, tmp_path / "original" / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    document = json.dumps({**config, "model_type": "phi4mm"})
    (tmp_path / "original" / "config.json").write_text(document)
    for name in ("hf", "original"):
        convert(tmp_path / name, tmp_path / f"{name}.gguf", to="gguf")
    own, other = (
        {name: node.data().to_numpy().tobytes() for name, node in open_weights(path).items()}
        for path in (tmp_path / "hf.gguf", tmp_path / "original.gguf")
    )
    assert own == other
