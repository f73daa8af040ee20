"""EAGLE-3 draft models against their definition and llama.cpp, and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from draft_models import HIDDEN, TOKENS, draw_states, make_draft, run_draft
from each import each
from family_cases import make_checkpoint
from llama_cpp import ask, count_drafts
from weightctl import convert, open_weights
from weightctl.errors import ArchitectureError, ConversionError
from weightctl.families import recognize
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from outcomes import Completed

IDS = {"eagle_aux_hidden_state_layer_ids": [2, 1, 0]}
# SafeAILab's, that of speculators, one of NVIDIA's, and one that can predict all tokens.
FORMS: dict[str, dict[str, Any]] = {
    "safeailab": {**IDS},
    "speculators": {**IDS, "nested": True, "norm_before_residual": True},
    "nvidia": {**IDS, "eagle_config": {"norm_before_fc": True, next(iter(IDS)): []}},
    "whole": {**IDS, "drafted": TOKENS, "target": HIDDEN},
}
MOST = 2e-4


@each("name", FORMS)
def test_llama_cpp_computes_what_a_draft_is_defined_as(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    source = make_draft(place, **FORMS[name])
    convert(source, place / "draft.gguf", dtype="f32")
    tokens, states = draw_states(24, FORMS[name].get("target", 192))
    made, logits = run_draft(source, tokens, states)
    ((found_made, found),) = ask(place / "draft.gguf", ("draft", tokens, states))
    assert np.abs(found_made - made).max() < MOST
    known = np.isfinite(logits)
    assert np.array_equal(np.isfinite(found), known)
    assert known.all() == (name == "whole")
    assert logits[known].std() > 1
    assert np.abs(found[known] - logits[known]).max() < MOST


@each("name", FORMS)
def test_a_draft_comes_back_from_gguf(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    source = make_draft(place, **FORMS[name])
    convert(source, place / "draft.gguf", dtype="f32")
    convert(place / "draft.gguf", place / "back", dtype="f32")
    before, after = (load_file(each / "model.safetensors") for each in (source, place / "back"))
    before = {key.replace("layers.0.", "midlayer."): each for key, each in before.items()}
    before.pop("t2d", None)  # it follows from d2t
    assert before.keys() == after.keys()
    assert [key for key, each in before.items() if not np.array_equal(each, after[key])] == []
    tokens, states = draw_states(8, FORMS[name].get("target", 192))
    runs = [run_draft(path, tokens, states) for path in (source, place / "back")]
    assert all(map(np.array_equal, *runs))
    written = json.loads((place / "back" / "config.json").read_text())
    assert written["architectures"] == ["LlamaForCausalLMEagle3"]
    fields = [recognize(open_weights(each)).config for each in (source, place / "back")]
    assert fields[0] == fields[1]


def test_llama_cpp_drafts_for_the_target_whose_tokens_and_layers_base_states(
    crossed: Path, tmp_path: Path
) -> None:
    target = make_checkpoint("llama", crossed).path
    source = make_draft(tmp_path / "draft", embedded=False, target=HIDDEN)
    made = convert(source, tmp_path / "draft.gguf", base=target)
    assert not any("tokenizer" in note for note in made.notes)
    found = header_of(open_weights(tmp_path / "draft.gguf"))
    # The target has 3 layers.
    assert list(found.metadata["eagle3.target_layers"].content) == [2, 1, 0]
    assert len(found.metadata["tokenizer.ggml.tokens"].content) == TOKENS
    assert "token_embd.weight" not in found.tensors
    convert(target, tmp_path / "target.gguf")
    convert(source, tmp_path / "small.gguf", base=target, quant="Q8_0")
    small = header_of(open_weights(tmp_path / "small.gguf")).tensors
    assert small["d2t"].encoding.name == "I64"
    assert small["fc.weight"].encoding.name == "Q8_0"
    for draft in ("draft", "small"):
        each = tmp_path / f"{draft}.gguf"
        prompt = [10, 20, 30, 40, 50]
        assert count_drafts(tmp_path / "target.gguf", prompt, tmp_path, each, "EAGLE3") > 0


def test_a_draft_that_leaves_its_layers_to_the_target_needs_its_name(tmp_path: Path) -> None:
    source = make_draft(tmp_path / "draft", eagle_aux_hidden_state_layer_ids=[])
    with pytest.raises(ArchitectureError, match=r"eagle3\.target_layers.*--base DIR"):
        convert(source, tmp_path / "draft.gguf")
    with pytest.raises(ConversionError, match=r"not a directory with config\.json"):
        convert(source, tmp_path / "draft.gguf", base=tmp_path)


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"fc_norm": True}, "no norm for each layer of the target"),
    ({"norm_output": True}, "passes states on before the last norm"),
    ({"eagle_config": {"use_aux_hidden_state": False}}, "drafts that read one layer"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, "requires 3 layers"),
    ({"layer_types": ["sliding_attention"]}, "no sliding windows"),
    ({"num_hidden_layers": 2}, "supports one layer"),
    ({"attention_bias": True}, "biases are not supported"),
]


@each("config, reason", UNSUPPORTED)
def test_drafts_that_llama_cpp_does_not_run_are_refused(
    config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    source = make_draft(tmp_path / reason, **{**IDS, **config})
    with pytest.raises(ArchitectureError, match=reason):
        convert(source, tmp_path / "draft.gguf")


def test_verify_checks_the_tensors_of_a_draft(
    weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    source = make_draft(tmp_path / "draft")
    assert weightctl("verify", source).returncode == 0
    tensors = load_file(source / "model.safetensors")
    save_file({key: tensors[key] for key in tensors.keys() - {"d2t"}}, source / "model.safetensors")
    done = weightctl("verify", source, "--check", "names")
    assert done.returncode == 1
    assert "d2t" in done.stdout
