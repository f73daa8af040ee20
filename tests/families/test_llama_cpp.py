"""What llama.cpp loads, and what it computes otherwise: `llama_cpp.toml`, and the notes."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tiny
from each import each, usual
from llama_cpp import ask
from weightctl import WeightData, convert
from weightctl.errors import ArchitectureError, ConversionError
from weightctl.families import FAMILIES, config_writing, llama_cpp
from weightctl.families.llama_cpp import RuntimeDifference, find_unloaded_tensors
from weightctl.plan.plan import Plan
from weightctl.translate import translate
from weightctl.weights.derived import Derived, StoredTensor
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.tree import Checkpoint, header_of, source_of
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable

    from commands import Completed

TIED = {"tie_word_embeddings": True}
NO_OUTPUT = "llama.cpp requires `output.weight`, an output that is not tied to the embedding"
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
BY_GROUPS = {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}


def unread(name: str) -> str:
    return f"llama.cpp does not read `blk.0.{name}.bias`"


def alike(kind: str, layers: int) -> dict[str, Any]:
    return {"layer_types": [kind] * layers}


# A case of `tests/crossing/cases`, the changes of its config, and what llama.cpp lacks.
UNLOADED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("stablelm", TIED, NO_OUTPUT),
    ("gptneox", TIED, NO_OUTPUT),
    ("cohere", {"attention_bias": True}, unread("attn_output")),
    ("olmo2", {"attention_bias": True}, unread("attn_output")),
    ("seed_oss", {"attention_out_bias": True}, unread("attn_output")),
    ("ernie4_5", {"use_bias": True}, unread("ffn_gate")),
    ("jais2", {"attention_bias": False}, "llama.cpp requires `blk.0.attn_output.bias`"),
    ("starcoder2", {"use_bias": False}, "llama.cpp requires `blk.0.attn_output.bias`"),
    ("cohere2", alike("full_attention", 4), "none of its layers has a sliding window"),
    ("exaone_moe", alike("full_attention", 4), "none of its layers has a sliding window"),
    ("modernbert", alike("full_attention", 5), "none of its layers has a sliding window"),
    ("modernbert", alike("sliding_attention", 5), "all of its layers have a sliding window"),
    ("bamba", {"attn_layer_indices": []}, "none of its layers has attention"),
    ("ernie4_5_moe", {"moe_layer_interval": 2}, "layers after the first 1 have no experts"),
    ("dots1", {"num_key_value_heads": 2}, "it has 4 query heads and 2 KV heads"),
    ("deepseek_v2", {"q_lora_rank": None}, "supports 3 layers only with latent queries"),
    ("deepseek_v4", {"hc_mult": 2}, "supports only 4 streams of vectors"),
    ("kimi_linear", {"q_lora_rank": 32}, "its queries are computed from latent vectors"),
    ("cohere", {"head_dim": 16}, "`head_dim` is 16 instead of hidden size / heads"),
    # Others of these kinds.
    *((name, TIED, NO_OUTPUT) for name in (
        "apertus", "bailingmoe", "bailingmoe2", "dots1", "exaone_moe", "gpt_oss", "llada_moe",
        "mimo2", "minimax_m2", "nemotron", "olmo2", "olmo3", "olmoe", "phi2", "phimoe", "qwen2moe",
        "rwkv6", "rwkv7",
    )),
    *((name, {"attention_bias": True}, unread("attn_output")) for name in (
        "afmoe", "arcee", "cohere2", "dots1", "hunyuan_dense", "hunyuan_moe", "llama4",
        "nanbeige", "olmo3", "olmoe", "smollm3",
    )),
    *((name, {"mlp_bias": True}, "llama.cpp does not read `blk.0.ffn_") for name in (
        "arcee", "nanbeige", "seed_oss", "smollm3",
    )),
    ("bailingmoe", {"use_bias": True}, unread("attn_output")),
    ("bitnet", {"attention_bias": True}, unread("attn_q")),
    ("gpt_oss", {"attention_bias": False}, "llama.cpp requires `blk.0.attn_"),
    ("gptneox", {"attention_bias": False}, "llama.cpp requires `blk.0.attn_"),
    ("jais2", {"mlp_bias": False}, "llama.cpp requires `blk.0.ffn_"),
    ("phimoe", {"attention_bias": False}, "llama.cpp requires `blk.0.attn_"),
    ("phimoe", {"lm_head_bias": False}, "llama.cpp requires `output.bias`"),
    ("minicpm3", {"q_lora_rank": None}, "llama.cpp requires `blk.0.attn_q_a.weight`"),
    *((name, alike("full_attention", layers), "none of its layers has a sliding window")
      for name, layers in (("gemma3n", 3), ("gemma4", 6), ("gpt_oss", 3), ("mimo2", 4),
                           ("olmo3", 4), ("gemma2", 3), ("spark2_5", 4))),
    ("deepseek_v4", alike("sliding_attention", 4), "none of its layers has compressed attention"),
    *((name, alike("linear_attention", 3), "none of its layers has attention")
      for name in ("granitehybrid", "kimi_linear", "qwen35", "qwen35moe", "qwen3next")),
    *((name, alike("full_attention", 3), "none of its layers has a gated delta net")
      for name in ("kimi_linear", "qwen35", "qwen35moe", "qwen3next")),
    *((name, alike("conv", 3), "none of its layers has attention")
      for name in ("lfm2", "lfm2_moe")),
    *((name, alike("full_attention", 3), "none of its layers has a convolution")
      for name in ("lfm2", "lfm2_moe")),
    ("granitehybrid", alike("attention", 3), "none of its layers has a state space model"),
    ("bamba", {"attn_layer_indices": [0, 1, 2]}, "none of its layers has a state space model"),
    ("jamba", {"attn_layer_period": 1, "attn_layer_offset": 0}, "has a state space model"),
    ("jamba", {"attn_layer_period": 9, "attn_layer_offset": 8}, "has attention"),
    ("plamo2", {"mamba_step": 1}, "none of its layers has"),
    ("nemotron_h", {"layers_block_type": ["attention", "mlp"] * 2}, "has a state space model"),
    *((name, {"rope_parameters": {"rope_type": "default", "mrope_section": [0, 0, 0]}},
       "its sections of RoPE are empty") for name in ("qwen2vl", "qwen35", "qwen3vl")),
)  # fmt: skip


@each("name, changes, reason", usual(UNLOADED[:19], UNLOADED))
def test_what_llama_cpp_does_not_load_is_not_written(
    name: str, changes: dict[str, Any], reason: str
) -> None:
    model = tiny.make(name, **changes)
    with pytest.raises(ArchitectureError, match="does not load this") as caught:
        translate(model, "gguf")
    assert reason in caught.value.message


def test_every_architecture_of_llama_cpp_has_its_tensors() -> None:
    lacking = [
        name
        for name, entry in FAMILIES.items()
        if (family := entry.load()).in_llama_cpp and family.gguf_name not in llama_cpp._read_table()
    ]
    assert lacking == []


@pytest.mark.long
@each("name", sorted({name for name, _, _ in UNLOADED}))
def test_llama_cpp_does_not_load_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_writing, "_refuse_unloaded", lambda *_: None)
    question = ("embeddings" if name == "modernbert" else "logits", [5, 9, 30])
    usual = tiny.write(tmp_path / "usual.gguf", name)
    changed = {
        str(tiny.write(tmp_path / f"{number}.gguf", name, **changes)): changes
        for number, (other, changes, _) in enumerate(UNLOADED)
        if other == name
    }
    _, *loads = ask(usual, question, *(("loads", path) for path in changed))
    for path, is_loaded in zip(changed, loads, strict=True):
        if is_loaded:  # it ends llama.cpp when it computes
            with pytest.raises(AssertionError):
                ask(Path(path), question)


# One case of each architecture of GGUF.
ARCHITECTURES = {
    FAMILIES[case["family"]].load().gguf_name: name
    for name, case in reversed(tiny.read_cases().items())
    if FAMILIES[case["family"]].load().in_llama_cpp
}


# Those of which llama.cpp has no output that is not tied to the embedding.
TIED_ONLY = {"bitnet", "cohere", "cohere2", "gemma", "gemma2", "plm"}


@each("name", sorted({*ARCHITECTURES.values()} - TIED_ONLY))
def test_an_output_that_is_not_tied_is_written(name: str) -> None:
    model = tiny.make(name, tie_word_embeddings=False)
    made = header_of(translate(model, "gguf").weights)
    assert ("output.weight" in made.tensors) == ("output.weight" in model.tensors)


def list_variants(name: str) -> dict[str, Checkpoint]:
    """Return the GGUF of a case with a tensor less, or one more, by what is changed.

    The tensors are those of one layer, and those outside of layers.
    """
    model = tiny.make(name, "gguf")
    header, source = header_of(model.tree), source_of(model.tree)
    stored = {each: StoredTensor(source, each) for each in header.tensors}
    variants = {
        f"without {left_out}": Checkpoint(
            Derived(
                source,
                {each: stored[each] for each in stored if each != left_out},
                header.metadata,
            )
        )
        for left_out in stored
        if not left_out.startswith("blk.") or left_out.startswith("blk.1.")
    }
    for added in ("blk.1.attn_output.bias", "blk.1.ffn_down.bias", "blk.1.attn_norm_3.weight"):
        if added not in stored and f"{added.removesuffix('bias')}weight" in {*stored, added}:
            bias = WeightData.from_numpy(np.zeros(model.config.hidden, np.float32), added)
            more = source_of(as_checkpoint({added: bias}))
            variants[f"with {added}"] = Checkpoint(
                Derived(source, {**stored, added: StoredTensor(more, added)}, header.metadata)
            )
    return variants


@pytest.mark.long
@each("architecture", ARCHITECTURES)
def test_the_table_of_tensors_is_what_llama_cpp_loads(architecture: str, tmp_path: Path) -> None:
    name = ARCHITECTURES[architecture]
    tiny.write(tmp_path / "whole.gguf", name)
    expected: dict[str, bool] = {}
    for number, (change, tree) in enumerate(list_variants(name).items()):
        header = header_of(tree)
        expected[change] = find_unloaded_tensors(header.metadata, header.tensors) is None
        save(Plan.copy(tree, "gguf"), tmp_path / f"{number}.gguf")
    asked = [("loads", str(tmp_path / f"{number}.gguf")) for number in range(len(expected))]
    found = dict(zip(expected, ask(tmp_path / "whole.gguf", *asked), strict=True))
    # The config says whether a model has these.
    by_config = {
        f"without {each}"
        for each in header_of(tiny.make(name, "gguf").tree).tensors
        if llama_cpp._plain(each)
        in re.split(r"[ |]", llama_cpp._read_table()[architecture]["possible"])
    }
    assert {
        change: found[change]
        for change in found
        if found[change] != expected[change] and not (expected[change] and change in by_config)
    } == {}


def test_a_layer_for_mtp_may_lack_what_other_layers_need() -> None:
    counts = {"x.block_count": 3, "x.nextn_predict_layers": 1}
    metadata = {key: MetadataValue("u32", count) for key, count in counts.items()}
    names = ["blk.0.ffn_up.weight", "blk.2.nextn.eh_proj.weight"]
    missing = llama_cpp._find_missing("blk.ffn_up", "x", metadata, names)
    assert [*missing] == ["blk.1.ffn_up.weight"]


# What llama.cpp computes otherwise is a note, and `strict` refuses it.


@each(
    "name, changes, what",
    [
        ("deepseek_v2", BY_GROUPS, "it ranks a group of experts by the best two of them"),
        ("deepseek_v2", {"rope_parameters": LINEAR}, "it multiplies attention scores by"),
        ("deepseek_v3", {"rope_parameters": LINEAR}, "it multiplies attention scores by"),
        ("deepseek_v4", {"rope_parameters": LINEAR}, "it does not apply `linear` RoPE scaling"),
        ("exaone4", {"sliding_window": 16}, "it uses a sliding window in models of 64 layers"),
        ("gemma3n", {"num_kv_shared_layers": 1}, "0 layers share keys and values in place of 1"),
        ("gemma3n", {"activation_sparsity_pattern": [0.9, 0.9, 0.0]}, "with a sparsity of 0.95"),
        ("rwkv7", {"norm_eps": 1e-6}, "the norm of each head has the epsilon"),
        ("qwen35", {"rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2]}},
         "it does not rotate the pairs that no section of RoPE contains"),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 0},
         "it does not apply the sliding window, so texts longer than 32 tokens differ"),
    ],
)  # fmt: skip
def test_what_llama_cpp_computes_otherwise_is_a_note(
    name: str, changes: dict[str, Any], what: str
) -> None:
    model = tiny.make(name, **changes)
    made = translate(model, "gguf")
    (note,) = [each for each in made.notes if isinstance(each, RuntimeDifference) and what in each]
    assert note.startswith("results of llama.cpp differ from transformers: ")
    # The file still describes the same model. These are forms of tensors.
    found, back = asdict(model.config), asdict(tiny.as_gguf(model).config)
    in_tensors = {"norm_offset", "layer_vocabulary", "rope_scaling", "has_rope_factors"}
    assert {key for key in found if found[key] != back[key]} <= in_tensors


def test_the_usual_deepseek_v2_and_qwen3_5_have_no_such_note() -> None:
    for name in ("deepseek_v2", "deepseek_v3", "qwen35"):
        assert not [each for each in translate(tiny.make(name), "gguf").notes
                    if isinstance(each, RuntimeDifference)]  # fmt: skip


def test_deepseek_v2_of_236b_comes_back_with_its_groups(tmp_path: Path) -> None:
    tiny.write(tmp_path / "model", "deepseek_v2", **BY_GROUPS)
    made = convert(tmp_path / "model", tmp_path / "model.gguf")
    assert [each for each in made.notes if isinstance(each, RuntimeDifference)]
    convert(tmp_path / "model.gguf", tmp_path / "back")
    document = json.loads((tmp_path / "back" / "config.json").read_text())
    assert {key: document[key] for key in BY_GROUPS} == BY_GROUPS


def test_strict_refuses_it_before_anything_is_written(
    tmp_path: Path, weightctl: Callable[..., Completed]
) -> None:
    source, out = tiny.write(tmp_path / "model", "rwkv7", norm_eps=1e-6), tmp_path / "model.gguf"
    done = weightctl("convert", source, out, "--strict")
    assert done.returncode == 2
    assert "results of llama.cpp differ from transformers: the norm of each" in done.stderr
    assert "omit --strict" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    with pytest.raises(ConversionError, match="differ from transformers"):
        convert(source, out, strict=True, dry_run=True)
    assert weightctl("convert", source, out).returncode == 0


def test_strict_refuses_what_llama_cpp_does_not_load(tmp_path: Path) -> None:
    source, out = tiny.write(tmp_path / "model", "llama"), tmp_path / "model.gguf"
    convert(source, out, strict=True, dry_run=True)
    for options in ({"exclude": "*attn_norm*"}, {"names": "keep"}):
        with pytest.raises(ConversionError, match=r"llama\.cpp does not load the output"):
            convert(source, out, strict=True, **options)
    (note,) = [
        note
        for note in convert(source, out, exclude="blk.0.attn_norm*", dry_run=True).notes
        if isinstance(note, RuntimeDifference)
    ]
    assert "llama.cpp requires `blk.0.attn_norm.weight`" in note
