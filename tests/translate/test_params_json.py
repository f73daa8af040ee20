"""Models as Meta and Mistral AI release them: params.json, and files named `consolidated`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy as stored

from lazy import torch
from tiny import write
from weightctl import convert, open_weights
from weightctl.errors import ArchitectureError
from weightctl.families.steps import interleaved_order

if TYPE_CHECKING:
    from pathlib import Path

NAMES = (
    ("model.embed_tokens.", "tok_embeddings."),
    ("lm_head.", "output."),
    ("model.", ""),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attention.wq"),
    ("self_attn.k_proj", "attention.wk"),
    ("self_attn.v_proj", "attention.wv"),
    ("self_attn.o_proj", "attention.wo"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("block_sparse_moe.", "feed_forward."),
)
KEYS = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "norm_eps": "rms_norm_eps",
}  # fmt: skip


def release(path: Path, into: Path, **more: Any) -> Path:
    """Write a model directory in the other form; a `.pth` file if `more` has no size of a head."""
    document = json.loads((path / "config.json").read_text())
    made: dict[str, Any] = {}
    for name, array in stored.load_file(path / "model.safetensors").items():
        for old, new in NAMES:
            name = name.replace(old, new)  # noqa: PLW2901  # the next name of one tensor
        if name.endswith(("wq.weight", "wk.weight")):
            size = (
                document.get("head_dim")
                or document["hidden_size"] // document["num_attention_heads"]
            )
            array = array[list(interleaved_order(len(array) // size, size))]  # noqa: PLW2901
        made[name] = np.ascontiguousarray(array)
    into.mkdir()
    params = {new: document[old] for new, old in KEYS.items() if old in document} | more
    (into / "params.json").write_text(json.dumps(params))
    if "head_dim" in more:
        stored.save_file(made, into / "consolidated.safetensors")
    else:
        tensors = {name: torch.from_numpy(array) for name, array in made.items()}
        torch.save(tensors, into / "consolidated.00.pth")
    return into


def assert_same_files(one: Path, other: Path) -> None:
    """Assert that two GGUF files have the same tensors, and the same keys of the architecture."""
    first, second = open_weights(one), open_weights(other)
    assert dict(first.items()).keys() == dict(second.items()).keys()
    for name, node in first.items():
        assert node.data().to_numpy().tobytes() == second[name].data().to_numpy().tobytes(), name
    keys = {key: value for key, value in first.metadata.items() if key.startswith("llama.")}
    assert keys == {key: second.metadata[key] for key in keys}


def test_mistrals_form_becomes_the_same_gguf(tmp_path: Path) -> None:
    changes = {"model_type": "mistral", "head_dim": 64, "rope_theta": 1e6, "sliding_window": None}
    path = write(tmp_path / "hf", "llama-internlm3", rms_norm_eps=1e-5, **changes)
    form = release(path, tmp_path / "form", head_dim=64, rope_theta=1e6, hidden_dim=512,
                   vocab_size=320, max_position_embeddings=512, tied_embeddings=False)  # fmt: skip
    for source in (path, form):
        convert(source, source.with_suffix(".gguf"))
    assert_same_files(tmp_path / "hf.gguf", tmp_path / "form.gguf")
    convert(form, tmp_path / "out", names="hf")
    made = stored.load_file(tmp_path / "out/model.safetensors")
    expected = stored.load_file(path / "model.safetensors")
    assert made.keys() == expected.keys()
    assert all(np.array_equal(made[name], array) for name, array in expected.items())
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == ["MistralForCausalLM"]
    convert(tmp_path / "out", tmp_path / "again.gguf")
    assert_same_files(tmp_path / "hf.gguf", tmp_path / "again.gguf")


def test_metas_form_becomes_the_same_gguf(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    changes = {"rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "rope_theta": 5e5}
    path = write(tmp_path / "hf", "llama", rope_parameters=None, rope_scaling=scaling, **changes)
    form = release(path, tmp_path / "form", rope_theta=5e5, use_scaled_rope=True, multiple_of=256,
                   ffn_dim_multiplier=1.5, vocab_size=320)  # fmt: skip
    for source in (path, form):
        convert(source, source.with_suffix(".gguf"))
    assert_same_files(tmp_path / "hf.gguf", tmp_path / "form.gguf")


def test_a_model_with_other_parts_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "hf", "llama-internlm3", head_dim=64)
    form = release(path, tmp_path / "form", head_dim=64, vision_encoder={"hidden_size": 1024})
    with pytest.raises(ArchitectureError, match="models with `vision_encoder` are not supported"):
        convert(form, tmp_path / "form.gguf")


def test_a_model_without_params_is_refused(tmp_path: Path) -> None:
    form = release(
        write(tmp_path / "hf", "llama-internlm3", head_dim=64), tmp_path / "form", head_dim=64
    )
    (form / "params.json").unlink()
    with pytest.raises(ArchitectureError, match=r"params\.json: .*in place of config\.json"):
        convert(form, tmp_path / "form.gguf")
