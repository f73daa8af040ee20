"""Models in the form in which Mistral and Meta distribute them, with a params.json."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest

import weightctl
from each import each
from lazy import torch, transformers
from weightctl.errors import TokenizerError, WeightctlError

if TYPE_CHECKING:
    from pathlib import Path

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6, "rope_theta": 20_000.0, "head_dim": 16,
}  # fmt: skip
PARAMS = {
    "dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "hidden_dim": 80,
    "norm_eps": 1e-6, "rope_theta": 20_000.0, "vocab_size": 96, "max_position_embeddings": 128,
}  # fmt: skip
META = {
    "dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-6, "vocab_size": -1,
    "rope_theta": 20_000.0, "multiple_of": 16, "ffn_dim_multiplier": 1.3,
}  # fmt: skip
# Hugging Face's names, and those of the releases.
NAMES = {
    r"model\.embed_tokens": "tok_embeddings", r"model\.norm": "norm", r"lm_head": "output",
    r"model\.layers\.(\d+)\.input_layernorm": r"layers.\1.attention_norm",
    r"model\.layers\.(\d+)\.post_attention_layernorm": r"layers.\1.ffn_norm",
    r"model\.layers\.(\d+)\.self_attn\.(.)_proj": r"layers.\1.attention.w\2",
    r"model\.layers\.(\d+)\.mlp\.gate_proj": r"layers.\1.feed_forward.w1",
    r"model\.layers\.(\d+)\.mlp\.down_proj": r"layers.\1.feed_forward.w2",
    r"model\.layers\.(\d+)\.mlp\.up_proj": r"layers.\1.feed_forward.w3",
    r"model\.layers\.(\d+)\.block_sparse_moe": r"layers.\1.feed_forward",
}  # fmt: skip


def as_released(name: str, array: Any) -> tuple[str, Any]:
    """Return the name and the values of a tensor in the release."""
    for pattern, made in NAMES.items():
        name = re.sub(f"^{pattern}", made, name)
    if found := re.search(r"attention\.w([qk])", name):
        heads = 4 if found[1] == "q" else 2
        # The halves of a head become neighbors.
        array = array.view(heads, 2, 8, 64).transpose(1, 2).reshape(heads * 16, 64)
    return name, array.contiguous()


def release(folder: Path, model: Any, params: dict[str, Any], suffix: str = "safetensors") -> Path:
    folder.mkdir()
    stored = dict(as_released(*entry) for entry in model.state_dict().items())
    if suffix == "pth":
        stored["rope.freqs"] = torch.ones(8)
        torch.save(stored, folder / "consolidated.00.pth")
    else:
        from safetensors.torch import save_file

        save_file(stored, folder / "consolidated.safetensors")
    (folder / "params.json").write_text(json.dumps(params))
    return folder


def make(kind: str, **more: Any) -> Any:
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **more)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def assert_same_logits(folder: Path, model: Any) -> None:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)


def test_a_release_of_mistral_is_a_model_that_transformers_loads(tmp_path: Path) -> None:
    model = make("Mistral", sliding_window=None)
    made = weightctl.convert(release(tmp_path / "release", model, PARAMS), tmp_path / "out")
    assert_same_logits(tmp_path / "out", model)
    assert any("no tokenizer" in note for note in made.notes)
    config = json.loads((tmp_path / "out" / "config.json").read_bytes())
    assert config["architectures"] == ["MistralForCausalLM"]


def test_a_release_of_meta_is_a_model_that_transformers_loads(tmp_path: Path) -> None:
    model = make("Llama")
    weightctl.convert(release(tmp_path / "release", model, META, "pth"), tmp_path / "out")
    assert_same_logits(tmp_path / "out", model)
    config = json.loads((tmp_path / "out" / "config.json").read_bytes())
    assert (config["max_position_embeddings"], config["sliding_window"]) == (4096, None)


def test_a_gguf_of_a_release_is_that_of_the_model(tmp_path: Path) -> None:
    model = make("Mistral", sliding_window=None)
    model.save_pretrained(tmp_path / "model")
    weightctl.convert(tmp_path / "model", tmp_path / "model.gguf")
    weightctl.convert(release(tmp_path / "release", model, PARAMS), tmp_path / "release.gguf")
    compared = weightctl.diff(tmp_path / "model.gguf", tmp_path / "release.gguf", hashes=True)
    assert compared.differences == ()
    # params.json does not state the ids of tokens.
    assert {each.key for each in compared.metadata} <= {
        "general.name", "tokenizer.weightctl.token_ids",
    }  # fmt: skip


def test_a_base_of_rope_that_is_not_stated_is_that_of_the_release(tmp_path: Path) -> None:
    model = make("Mistral", sliding_window=None)
    params = {key: value for key, value in PARAMS.items() if key != "rope_theta"}
    for name, more, base in (("new", {}, 1e6), ("old", {"sliding_window": 4096}, 1e4)):
        folder = release(tmp_path / name, model, {**params, **more})
        weightctl.convert(folder, tmp_path / f"{name}-out")
        config = json.loads((tmp_path / f"{name}-out" / "config.json").read_bytes())
        assert config["rope_theta"] == base


def test_experts_are_those_of_mixtral(tmp_path: Path) -> None:
    params = {**PARAMS, "moe": {"num_experts": 4, "num_experts_per_tok": 2}}
    model = make("Mixtral", num_local_experts=4, num_experts_per_tok=2)
    model.save_pretrained(tmp_path / "model")
    from safetensors.torch import load_file, save_file

    (folder := tmp_path / "release").mkdir()
    stored = load_file(tmp_path / "model" / "model.safetensors")
    save_file(dict(as_released(*entry) for entry in stored.items()),
              folder / "consolidated.safetensors")  # fmt: skip
    (folder / "params.json").write_text(json.dumps(params))
    weightctl.convert(folder, tmp_path / "out")
    assert_same_logits(tmp_path / "out", model)


@each(
    ("params", "message"),
    [
        ({**PARAMS, "vision_encoder": {"hidden_size": 8}}, "`vision_encoder`"),
        ({**PARAMS, "n_heads": 5}, "rows"),
        ({}, "is missing"),
    ],
)
def test_what_params_state_is_not_ignored(
    params: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = release(tmp_path / "release", make("Mistral", sliding_window=None), params)
    with pytest.raises(WeightctlError, match=message):
        weightctl.convert(folder, tmp_path / "out")


def test_a_tokenizer_of_the_release_is_written(tmp_path: Path) -> None:
    folder = release(tmp_path / "release", make("Mistral", sliding_window=None), PARAMS)
    words = [b64encode(bytes([byte])).decode() for byte in range(256)]
    vocabulary = [{"rank": rank, "token_bytes": word} for rank, word in enumerate(words)]
    sizes = {"default_vocab_size": 300, "default_num_special_tokens": 44}
    (folder / "tekken.json").write_text(json.dumps({"config": sizes, "vocab": vocabulary}))
    with pytest.raises(TokenizerError, match="300 tokens, but the model's embedding"):
        weightctl.convert(folder, tmp_path / "out")
    sizes = {"default_vocab_size": 96, "default_num_special_tokens": 40}
    (folder / "tekken.json").write_text(json.dumps({"config": sizes, "vocab": vocabulary}))
    weightctl.convert(folder, tmp_path / "out")
    document = json.loads((tmp_path / "out" / "tokenizer.json").read_bytes())
    assert document["model"]["vocab"]["!"] == 40 + ord("!")
