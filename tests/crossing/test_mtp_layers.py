"""Layers of multi-token prediction are kept in both directions, and left out only on request."""

from __future__ import annotations

import json
import re
from shutil import copytree
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from each import usual
from family_cases import make_checkpoint
from llama_cpp import ask, count_drafts
from mtp_checkpoints import FORMS, make_mtp_checkpoint
from once import once
from weightctl import convert, open_weights, shard
from weightctl.errors import ArchitectureError, ConversionError
from weightctl.families import recognize
from weightctl.weights.derived import Derived, DerivedTensor, tensor_of
from weightctl.weights.steps.rows import RowRange
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed


QUICK = {"deepseek_v3", "mimo2"}
each_form = pytest.mark.parametrize("name", usual(QUICK, FORMS))
# What all layers of EXAONE MoE for it share, by the names that its converter gives them.
SHARED_NAMES = {
    # That of Hunyuan 3, which each layer has.
    "model.layers.{}.final_layernorm": "model.layers.{}.shared_head.norm",
    "mtp.fc": "model.layers.{}.eh_proj",
    "mtp.pre_fc_norm_embedding": "model.layers.{}.enorm",
    "mtp.pre_fc_norm_hidden": "model.layers.{}.hnorm",
    "mtp.norm": "model.layers.{}.shared_head.norm",
    # Those of Nemotron-H, two of whose layers are one in GGUF.
    "mtp.layers.1.norm": "model.layers.{}.post_attention_layernorm",
    "mtp.layers.1.final_layernorm": "model.layers.{}.shared_head.norm",
}
COUNT = "num_nextn_predict_layers"
# A number plus 1 in float32, less 1 again, and the logarithm of an exponential.
MOST_ROUNDING = 3e-7


@pytest.fixture(scope="session")
def original(crossed: Path) -> Callable[[str], Path]:
    return lambda name: make_mtp_checkpoint(name, crossed)


@pytest.fixture(scope="session")
def in_gguf(original: Callable[[str], Path]) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        source = original(name)
        target = source.with_name(f"{name}.gguf")
        return once(target, lambda half: convert(source, half, to="gguf"))

    return make


def tensors(path: Path) -> dict[str, Any]:
    return load_file(path / "model.safetensors")


def is_same(form: str, name: str, found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether a tensor is the same; in some, GGUF has other numbers for norms and rates."""
    if form.startswith(("qwen", "nemotron", "bailing", "step")) and re.search(
        r"norm(_\w+)?\.weight$|\.A_log$", name
    ):
        return bool(np.abs(found[name] - expected[name]).max() < MOST_ROUNDING)
    return bool(found[name].tobytes() == expected[name].tobytes())


def config(path: Path) -> dict[str, Any]:
    return json.loads((path / "config.json").read_text())


def metadata(path: Path) -> dict[str, Any]:
    found = header_of(open_weights(path)).metadata
    return {key.partition(".")[2]: value.content for key, value in found.items()}


def without(path: Path, into: Path, *endings: str) -> Path:
    """Return a copy of a model without the tensors that contain one of these texts."""
    copytree(path, into)
    kept = {
        name: values
        for name, values in tensors(path).items()
        if not any(each in name for each in endings)
    }
    save_file(kept, into / "model.safetensors", {"format": "pt"})
    return into


def problems(done: Completed) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.stdout)["problems"]
    return found


# Qwen3.5 has a list with as many numbers as layers, which is not a value for each layer.
@pytest.mark.parametrize("name", usual({*QUICK, "qwen35"}, FORMS))
def test_the_tensors_come_back_with_the_same_bytes(
    name: str, original: Callable[[str], Path], in_gguf: Callable[[str], Path], tmp_path: Path
) -> None:
    convert(in_gguf(name), tmp_path / "back")
    expected, found = tensors(original(name)), tensors(tmp_path / "back")
    assert found.keys() == expected.keys()
    assert [each for each in expected if not is_same(name, each, found, expected)] == []
    assert config(tmp_path / "back").get(COUNT) == config(original(name)).get(COUNT)


@each_form
def test_gguf_counts_them_as_layers(
    name: str, original: Callable[[str], Path], in_gguf: Callable[[str], Path]
) -> None:
    form, found = FORMS[name], metadata(in_gguf(name))
    stated = config(original(name))
    layers = stated.get("num_hidden_layers") or len(stated["layers_block_type"])
    assert found["nextn_predict_layers"] == form.layers
    assert found["block_count"] == layers + form.layers
    for key in ("attention.sliding_window_pattern", "attention.head_count_kv"):
        assert len(np.atleast_1d(found.get(key, 0))) in {1, layers + form.layers}
    names = header_of(open_weights(in_gguf(name))).tensors
    for number in range(layers, layers + form.layers):
        assert f"blk.{number}.nextn.eh_proj.weight" in names


def test_the_layer_of_exaone_has_no_window(in_gguf: Callable[[str], Path]) -> None:
    found = metadata(in_gguf("exaone_moe"))
    assert any(found["attention.sliding_window_pattern"])
    assert not found["attention.sliding_window_pattern"][-1]


@each_form
def test_llama_cpp_computes_the_same_with_and_without_them(
    name: str, in_gguf: Callable[[str], Path], crossed: Path, tmp_path: Path
) -> None:
    made = make_checkpoint(FORMS[name].case, crossed)
    convert(in_gguf(name), tmp_path / "without.gguf", without="mtp")
    (found,) = ask(in_gguf(name), ("logits", made.tokens))
    (other,) = ask(tmp_path / "without.gguf", ("logits", made.tokens))
    assert np.array_equal(found, other)
    # In GLM-5, llama.cpp leaves out the epsilon of the norm of the indexer's keys.
    assert np.abs(found - made.expected).max() < 2e-4


# llama.cpp loads the layer of EXAONE MoE, and two of GLM-4 MoE, but does not run them.
@pytest.mark.parametrize(
    "name",
    usual(["mimo2"], ["deepseek_v3", "glm4_moe", "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe"]),
)
def test_llama_cpp_predicts_with_them(
    name: str, in_gguf: Callable[[str], Path], tmp_path: Path
) -> None:
    assert count_drafts(in_gguf(name), [10, 20, 30, 40, 50], tmp_path) > 0


# llama.cpp does not run two layers of GLM-4 MoE, and requires the other layers in two families.
APART = sorted(FORMS.keys() - {"exaone_moe", "glm4v", "glm4_moe-shared"})


@pytest.mark.parametrize("name", usual(["mimo2"], APART))
def test_llama_cpp_predicts_with_those_of_a_file_of_their_own(
    name: str,
    original: Callable[[str], Path],
    in_gguf: Callable[[str], Path],
    weightctl: Callable[..., Completed],
    tmp_path: Path,
) -> None:
    target, apart, prompt = tmp_path / "target.gguf", tmp_path / "mtp.gguf", [10, 20, 30, 40, 50]
    convert(in_gguf(name), target, without="mtp")
    made = convert(original(name), apart, without="main")
    assert not any("does not load" in note for note in made.notes)
    whole = count_drafts(in_gguf(name), prompt, tmp_path)
    assert count_drafts(target, prompt, tmp_path, apart) == whole > 0
    found = header_of(open_weights(apart)).tensors
    one, other = (header_of(open_weights(each)).tensors for each in (in_gguf(name), target))
    assert found.keys() >= one.keys() - other.keys()
    assert not any(each.startswith("blk.") for each in found.keys() & other.keys())
    assert weightctl("verify", apart, "--check", "names").returncode == 0
    with pytest.raises(ArchitectureError, match="only the layers for multi-token prediction"):
        convert(apart, tmp_path / "back")
    convert(in_gguf(name), tmp_path / "small.gguf", without="main", quant="Q8_0")
    assert count_drafts(target, prompt, tmp_path, tmp_path / "small.gguf") > 0


def test_layers_that_no_file_of_their_own_can_have_are_refused(
    original: Callable[[str], Path], in_gguf: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(ConversionError, match="exaone-moe from a file of their own"):
        convert(original("exaone_moe"), out, without="main")
    with pytest.raises(ConversionError, match="writes a GGUF file"):
        convert(in_gguf("mimo2"), tmp_path / "directory", without="main")
    with pytest.raises(ConversionError, match="there are none"):
        convert(in_gguf("mimo2"), out, without=["main", "mtp"])


def test_names_are_those_of_llama_cpps_converter(original: Callable[[str], Path]) -> None:
    known: dict[str, set[str]] = {}
    for kind, theirs in gguf.TensorNameMap.block_mappings_cfg.items():
        for each in theirs:
            known.setdefault(each, set()).add(gguf.TENSOR_NAMES[kind])
    for name, form in FORMS.items():
        if name == "bailing_hybrid":
            continue  # gguf does not have its architecture yet
        found = recognize(open_weights(original(name)))
        for each in found.family.tensors(found.config):
            # Latent attention and experts have other tensors there.
            is_other = each.line.is_of_experts or each.line.module.endswith(("k_b", "v_b"))
            own, made = each.line.hugging_face or "", each.line.gguf
            if each.layer < found.config.layers or is_other or made is None:
                continue
            plain = SHARED_NAMES.get(own, own).replace("correction_bias", "correction")
            # What its converter renames.
            plain = plain.replace("transformer.", "").replace("head.output", "head.head")
            for prefix in (form.prefix, form.second, "model.layers.{}."):
                plain = plain.removeprefix(prefix)
            begin = "model" if f"model.layers.{{bid}}.{plain}" in known else "backbone"
            assert made.replace("{}", "{bid}") in known[f"{begin}.layers.{{bid}}.{plain}"], own


def test_queries_keys_and_values_of_these_layers_may_be_apart_in_gguf(
    in_gguf: Callable[[str], Path],
) -> None:
    tree = open_weights(in_gguf("mimo2"))
    source = source_of(tree)
    stored: dict[str, Any] = {name: tensor_of(source, name) for name in source.header.tensors}
    for layer in (4, 5, 6):
        whole = stored.pop(f"blk.{layer}.attn_qkv.weight")
        rows = zip("qkv", (0, 512, 768), (512, 768, 896), strict=True)
        for part, first, last in rows:
            name = f"blk.{layer}.attn_{part}.weight"
            stored[name] = DerivedTensor(name, RowRange(first, last), [whole])
    apart = recognize(Checkpoint(Derived(source, stored, source.header.metadata)))
    apart.check()
    expected = recognize(tree)
    assert apart.tensors.keys() == expected.tensors.keys()
    for part in "qkv":
        module = f"layers.5.attention.{part}.weight"
        one, other = apart.weights[module], expected.weights[module]
        assert np.array_equal(np.from_dlpack(one.data()), np.from_dlpack(other.data()))


@each_form
def test_without_them_every_direction_gives_the_same_model(
    name: str,
    original: Callable[[str], Path],
    in_gguf: Callable[[str], Path],
    crossed: Path,
    tmp_path: Path,
) -> None:
    plain = tensors(make_checkpoint(FORMS[name].case, crossed).path)
    for number, source in enumerate((original(name), in_gguf(name))):
        convert(source, tmp_path / f"{number}.gguf", without="mtp")
        made = convert(source, tmp_path / str(number), without=["mtp"])
        (note,) = (each for each in made.notes if "MTP" in each)
        layers = FORMS[name].layers
        assert note.startswith(f"left out because of --without mtp: {layers} layer")
        found = tensors(tmp_path / str(number))
        assert found.keys() == plain.keys()
        assert [each for each in plain if not is_same(name, each, found, plain)] == []
        assert not config(tmp_path / str(number)).get(COUNT)
    one, other = (metadata(tmp_path / f"{number}.gguf") for number in (0, 1))
    one["size_label"] = other["size_label"]  # it is kept as the source states it
    assert {key: repr(value) for key, value in one.items()} == {
        key: repr(value) for key, value in other.items()
    }
    listed = [header_of(open_weights(tmp_path / f"{number}.gguf")).tensors for number in (0, 1)]
    assert listed[0] == listed[1]


def test_a_recipe_quantizes_them_and_llama_cpp_loads_the_file(
    original: Callable[[str], Path], crossed: Path, tmp_path: Path
) -> None:
    convert(original("deepseek_v3"), tmp_path / "small.gguf", quant="Q8_0")
    found = header_of(open_weights(tmp_path / "small.gguf")).tensors
    assert found["blk.3.nextn.eh_proj.weight"].encoding.name == "Q8_0"
    assert found["blk.3.nextn.enorm.weight"].encoding.name == "F32"
    tokens = make_checkpoint("deepseek_v3", crossed).tokens
    (logits,) = ask(tmp_path / "small.gguf", ("logits", tokens))
    assert np.isfinite(logits).all()


def test_types_of_engines_leave_their_projection_and_output_unquantized(
    original: Callable[[str], Path], tmp_path: Path
) -> None:
    convert(original("deepseek_v3"), tmp_path / "fp8", quant="FP8_DYNAMIC")
    found = header_of(open_weights(tmp_path / "fp8")).tensors
    for part in ("eh_proj", "shared_head.head", "embed_tokens"):
        assert found[f"model.layers.3.{part}.weight"].encoding.name == "F32"
    assert "model.layers.3.self_attn.o_proj.weight_scale" in found


def test_they_are_on_the_ranks_of_the_last_stage(
    original: Callable[[str], Path], tmp_path: Path
) -> None:
    shard(original("mimo2"), tmp_path / "ranks", tp=2, pp=2)
    first, last = (tensors(tmp_path / "ranks" / f"rank-{number}") for number in (0, 2))
    assert not any(".mtp." in name for name in first)
    assert last["model.mtp.layers.2.self_attn.k_proj.weight"].shape[0] == 128
    assert last["model.mtp.layers.2.eh_proj.weight"].shape == (256, 512)
    # These layers use the embedding of the model.
    assert "model.embed_tokens.weight" in last


def test_ls_counts_and_lists_them(
    original: Callable[[str], Path], in_gguf: Callable[[str], Path], weightctl: Callable[..., Any]
) -> None:
    line = "MTP (multi-token prediction): 1 layer, 44 tensors, 1.08 M parameters, 4.31 MB"
    assert line in weightctl("ls", original("deepseek_v3")).stdout.splitlines()
    found = json.loads(weightctl("ls", in_gguf("deepseek_v3"), "--json").stdout)["mtp"]
    assert found["layers"] == found["stated_layers"] == 1
    assert "blk.3.nextn.eh_proj.weight" in found["tensors"]
    assert len(found["tensors"]) == 24


def test_verify_names_lost_layers_that_the_config_states(
    original: Callable[[str], Path], weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    lost = without(original("deepseek_v3"), tmp_path / "lost", ".layers.3.")
    (line,) = (line for line in weightctl("ls", lost).stdout.splitlines() if line.startswith("MTP"))
    assert line.endswith("the config states 1 layer, but there are no tensors")
    done = weightctl("verify", lost, "--check", "names", "--json")
    assert done.returncode == 1
    (problem,) = problems(done)
    assert problem["where"] == COUNT
    assert problem["cause"]["name"] == "mtp_lost"
    # Such a model is converted without these layers, which a note says.
    made = convert(lost, tmp_path / "lost.gguf")
    assert any(f"{lost / 'config.json'} states 1 layer" in note for note in made.notes)
    assert metadata(tmp_path / "lost.gguf")["nextn_predict_layers"] == 0
    convert(lost, tmp_path / "stated", without="mtp")
    assert not weightctl("verify", tmp_path / "stated", "--check", "names").returncode


def test_verify_names_a_lost_layer_that_the_reference_has(
    original: Callable[[str], Path], weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    lost = without(original("mimo2"), tmp_path / "lost", ".mtp.layers.2.")
    done = weightctl("verify", lost, "--against", original("mimo2"), "--check", "values", "--json")
    (problem,) = problems(done)
    assert problem["where"] == "layers.6"
    assert problem["text"] == "is missing (14 tensors of a layer for multi-token prediction, MTP)"
    assert problem["cause"]["name"] == "mtp_lost"


def test_a_layer_that_is_incomplete_is_refused_and_its_tensors_are_named(
    original: Callable[[str], Path], weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    part = without(original("deepseek_v3"), tmp_path / "part", ".3.eh_proj.", ".3.enorm.")
    with pytest.raises(ArchitectureError, match=r"`model\.layers\.3\.enorm\.weight` is missing"):
        convert(part, tmp_path / "part.gguf")
    found = problems(weightctl("verify", part, "--check", "names", "--json"))
    assert {each["where"] for each in found} == {
        "model.layers.3.eh_proj.weight", "model.layers.3.enorm.weight",
    }  # fmt: skip
    convert(part, tmp_path / "part.gguf", without="mtp")
    assert not recognize(open_weights(tmp_path / "part.gguf")).missing


@pytest.mark.long
def test_a_family_without_a_place_for_them_is_refused_unless_they_are_left_out(
    crossed: Path, tmp_path: Path
) -> None:
    source = tmp_path / "qwen"
    copytree(make_checkpoint("qwen3", crossed).path, source)
    stored = tensors(source)
    norm = stored["model.norm.weight"]
    more = {f"model.mtp_{each}.0.weight": norm for each in ("emb_norm", "hidden_norm")}
    save_file(stored | more, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(ArchitectureError, match="mtp_emb_norm") as caught:
        convert(source, tmp_path / "out.gguf")
    assert "--without mtp" in caught.value.hint
    made = convert(source, tmp_path / "out.gguf", without="mtp")
    assert any("1 layer for multi-token prediction (MTP), 2 tensors" in each for each in made.notes)
    assert not recognize(open_weights(tmp_path / "out.gguf")).unexpected


@pytest.mark.long
def test_layers_of_ernie_are_kept_in_its_own_names_and_refused_in_gguf(
    original: Callable[[str], Path], weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    source = original("ernie4_5_moe")
    line = "MTP (multi-token prediction): 1 layer, 12 tensors, 722 K parameters, 2.89 MB"
    assert line in weightctl("ls", source).stdout.splitlines()
    with pytest.raises(ArchitectureError, match="no place for layers for multi-token") as caught:
        convert(source, tmp_path / "out.gguf")
    assert "--without mtp" in caught.value.hint
    convert(source, tmp_path / "out.gguf", without="mtp")
    assert not recognize(open_weights(tmp_path / "out.gguf")).unexpected
    convert(source, tmp_path / "kept", dtype="bf16")
    assert tensors(tmp_path / "kept").keys() == tensors(source).keys()
    assert not weightctl("verify", tmp_path / "kept", "--check", "names").returncode
    shard(source, tmp_path / "ranks", tp=2, pp=2)
    first, last = (tensors(tmp_path / "ranks" / f"rank-{number}") for number in (0, 2))
    assert not any(".mtp_" in name for name in first)
    assert (
        last["model.mtp_block.0.self_attn.k_proj.weight"].shape[0] * 2
        == (tensors(source)["model.mtp_block.0.self_attn.k_proj.weight"].shape[0])
    )
    lost = without(source, tmp_path / "lost", ".mtp_")
    (problem,) = problems(weightctl("verify", lost, "--check", "names", "--json"))
    assert problem["cause"]["name"] == "mtp_lost"


@pytest.mark.long
def test_two_layers_of_nemotron_h_are_one_in_gguf_and_counted_as_one(
    original: Callable[[str], Path], weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    source = original("nemotron_h_moe")
    found = json.loads(weightctl("ls", source, "--json").stdout)["mtp"]
    assert found["layers"] == found["stated_layers"] == 1
    shard(source, tmp_path / "ranks", tp=2, pp=2)
    first, last = (tensors(tmp_path / "ranks" / f"rank-{number}") for number in (0, 2))
    assert not any(name.startswith("mtp.") for name in first)
    assert last["mtp.layers.0.eh_proj.weight"].shape == (256, 512)
    lost = without(source, tmp_path / "lost", "mtp.layers.1.")
    with pytest.raises(ArchitectureError, match=r"`mtp\.layers\.1\.norm\.weight` is missing"):
        convert(lost, tmp_path / "lost.gguf")
    document = config(source) | {"mtp_hybrid_override_pattern": "*-"}
    del document["mtp_layers_block_type"]
    (lost / "config.json").write_text(json.dumps(document))
    with pytest.raises(ArchitectureError, match="other layers for multi-token prediction"):
        convert(lost, tmp_path / "lost.gguf")


# Layers for multi-token prediction that a family does not use, on the way to GGUF.


@pytest.mark.long
def test_those_of_deepseek_v4_are_refused_in_gguf_unless_they_are_left_out(
    crossed: Path, tmp_path: Path
) -> None:
    """GGUF has one output for the streams of all layers, and these layers have their own."""
    source = tmp_path / "source"
    copytree(make_checkpoint("deepseek_v4", crossed).path, source)
    stored = load_file(source / "model.safetensors")
    more = {f"mtp.0.{part}.weight": stored["model.norm.weight"] for part in ("enorm", "hnorm")}
    save_file(stored | more, source / "model.safetensors", {"format": "pt"})
    assert not recognize(open_weights(source)).unexpected
    with pytest.raises(ArchitectureError, match=r"mtp\.0\.enorm") as caught:
        convert(source, tmp_path / "out.gguf")
    assert "--without mtp" in caught.value.hint
    made = convert(source, tmp_path / "out.gguf", without="mtp")
    assert any("1 layer for multi-token prediction (MTP), 2 tensors" in each for each in made.notes)
    assert not any("not written" in each for each in made.notes)
