"""State space models: what config.json may state in several ways, and what llama.cpp lacks."""

from __future__ import annotations

import json
import re
from shutil import copytree
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from family_cases import make_checkpoint, untie_output
from lazy import LazyModule, load_file, save_file, torch, transformers
from llama_cpp import ask
from runs import executed
from weightctl import DType, convert, open_weights, shard
from weightctl.device import CPU
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES, recognize
from weightctl.families.config_writing import to_gguf, to_hugging_face
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.families.state_space import without_auto
from weightctl.graph import ops
from weightctl.graph.graph import Graph
from weightctl.nn.models.encoder_decoder import RelativeBias
from weightctl.translate.plans import plan_of
from weightctl.weights.derived import Derived, DerivedTensor, tensor_of
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.steps.rows import RowRange
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

modeling_t5: Any = LazyModule("transformers.models.t5.modeling_t5")


def fields_of(name: str, **document: Any) -> dict[str, Any]:
    """Return the fields of a config.json of a family."""
    family = FAMILIES[name].load()
    given = {"model_type": FAMILIES[name].model_types[0], **document}
    return dict(from_hugging_face(family, given, "here").fields)


REFUSED = {
    "a limit of the steps": ("mamba2", {"time_step_limit": [0.001, 0.1]}, "does not limit"),
    "biases of projections": ("mamba", {"use_bias": True}, "no biases in the projections"),
    "no bias of the convolution": ("mamba", {"use_conv_bias": False}, "bias of the convolution"),
    "heads that do not fit": ("mamba2", {"num_heads": 64}, "64 SSM heads of size 64"),
    "heads in uneven groups": ("mamba2", {"n_groups": 3}, "divided evenly among 3 groups"),
    "norms before gates": ("falcon_h1", {"mamba_rms_norm": True}, "before the norm"),
    "four factors": ("falcon_h1", {"ssm_multipliers": [1.0] * 4}, "5 `ssm_multipliers`"),
    "another word": ("nemotron_h", {"layers_block_type": ["conv"]}, "each layer must be one of"),
    "MLPs and experts": (
        "nemotron_h_moe",
        {"hybrid_override_pattern": "M-E"},
        "has `'mlp'`; each layer must be one of",
    ),
    "experts with biases": (
        "nemotron_h_moe",
        {"layers_block_type": ["moe"], "mlp_bias": True},
        "no biases in the experts",
    ),
    "an offset after the period": ("jamba", {"attn_layer_offset": 8}, "less than their period"),
    "numbers that are no layers": ("bamba", {"attn_layer_indices": ["1"]}, "list of layer numbers"),
}


@each("case", REFUSED)
def test_what_llama_cpp_or_the_family_lacks_is_refused(case: str) -> None:
    name, document, message = REFUSED[case]
    with pytest.raises(ArchitectureError, match=message):
        fields_of(name, **document)


@each(
    "name, document",
    [
        ("mamba", {"expand": 3}),
        ("jamba", {"mamba_expand": 1}),
        ("granitehybrid", {"mamba_expand": 4}),
        ("granitehybrid", {"layer_types": ["attention"] * 32}),
        ("jamba", {"num_hidden_layers": 5, "attn_layer_period": 6, "attn_layer_offset": 5}),
    ],
)
def test_what_llama_cpp_does_not_load_is_not_written(name: str, document: Any) -> None:
    with pytest.raises(ArchitectureError, match=r"llama\.cpp does not load this"):
        to_gguf(FAMILIES[name].load(), fields_of(name, **document))


def test_layers_of_nemotron_h_are_a_pattern_or_words_of_either_version() -> None:
    words = ("linear_attention", "mlp", "full_attention")
    older = ["mamba", "mlp", "attention"]
    for document in (
        {"hybrid_override_pattern": "M-*"},
        {"layers_block_type": list(words)},
        {"layers_block_type": older},
    ):
        assert fields_of("nemotron_h", **document)["layer_words"] == words


def test_layers_of_granite_are_words_of_either_version() -> None:
    for words in (["linear_attention", "full_attention"], ["mamba", "attention"]):
        found = fields_of("granitehybrid", num_hidden_layers=2, layer_types=words)
        assert found["attention_layers"] == (False, True)


def test_a_size_may_be_left_to_the_model() -> None:
    assert without_auto({"mamba_d_head": "auto", "mamba_n_heads": 4}) == {"mamba_n_heads": 4}
    assert fields_of("granitehybrid", mamba_d_head="auto")["ssm_size"] == 64


@each("layers, period, offset", [((1,), 4, 1), ((0, 2), 2, 0), ((2,), 3, 2)])
def test_the_layers_with_attention_in_jamba_become_a_period_and_an_offset(
    layers: tuple[int, ...], period: int, offset: int
) -> None:
    family = FAMILIES["jamba"].load()
    given = fields_of("jamba", num_hidden_layers=5, attn_layer_period=period,
                      attn_layer_offset=offset)  # fmt: skip
    metadata = to_gguf(family, given)
    counts = [8 if number in layers else 0 for number in range(5)]
    if layers == (0, 2):
        counts[4] = 8
    assert metadata["jamba.attention.head_count_kv"] == MetadataValue("array[u32]", counts)
    described = metadata | {"general.architecture": MetadataValue("string", "jamba")}
    back = to_hugging_face(family, from_gguf(family, described, {}, "here").fields, "jamba")
    assert (back["attn_layer_period"], back["attn_layer_offset"]) == (period, offset)


def test_factors_of_a_tied_output_go_into_the_norm_before_it() -> None:
    family = FAMILIES["falcon_h1"].load()
    document = {"model_type": "falcon_h1", "tie_word_embeddings": True,
                "embedding_multiplier": 4.0, "lm_head_multiplier": 0.5}  # fmt: skip
    config = from_hugging_face(family, document, "here").config
    steps = {
        each.module: str(each.change.to_gguf(config))
        for each in family.names
        if each.module in {"embedding", "norm"} and each.change is not None
    }
    assert steps == {"embedding": "times 4", "norm": "times 0.125"}


# What is special about RWKV-6: weights that GGUF halves by layer, and older names.


FAMILY = FAMILIES["rwkv6"].load()
HALVED = ("time_mix_output", "channel_mix_value")


def read(**keys: Any) -> Any:
    return from_hugging_face(FAMILY, {"model_type": "rwkv6", **keys}, "here")


@each("hidden, ranks", [(2048, (32, 64)), (4096, (64, 128))])
def test_the_sizes_of_vectors_follow_from_the_width(hidden: int, ranks: tuple[int, int]) -> None:
    found = read(hidden_size=hidden).config
    assert (found.mix_rank, found.decay_rank) == ranks
    assert found.intermediate == int(hidden * 3.5)
    assert (found.rescale_every, found.mix_vectors) == (6, 5 * ranks[0])


@each(
    "keys, said",
    [
        ({"attention_hidden_size": 512}, "attention_hidden_size"),
        ({"head_size_divisor": 4}, "one epsilon"),
        ({"hidden_size": 100}, "not an integer"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ArchitectureError) as caught:
        read(**keys)
    assert said in str(caught.value)


def test_halved_weights_stay_bf16_and_come_back_with_the_same_bytes(
    crossed: Path, tmp_path: Path
) -> None:
    convert(make_checkpoint("rwkv6", crossed).path, tmp_path / "own", dtype="bf16")
    convert(tmp_path / "own", tmp_path / "a.gguf")
    convert(tmp_path / "a.gguf", tmp_path / "back")
    stored = header_of(open_weights(tmp_path / "a.gguf")).tensors
    assert {stored[f"blk.3.{part}.weight"].encoding.name for part in HALVED} == {"BF16"}
    own, back = (load_file(tmp_path / each / "model.safetensors") for each in ("own", "back"))
    assert all(each.equal(back[name]) for name, each in own.items())
    tree = recognize(open_weights(tmp_path / "a.gguf"))
    module = tree.weights["layers.3.mlp.down.weight"].data().astype("float32")
    expected = own["rwkv.blocks.3.feed_forward.value.weight"].float().numpy() / 2
    assert np.array_equal(np.from_dlpack(module), expected)


def test_never_halved_weights_are_kept(crossed: Path, tmp_path: Path) -> None:
    copytree(make_checkpoint("rwkv6", crossed).path, tmp_path / "own")
    document = json.loads((tmp_path / "own" / "config.json").read_text()) | {"rescale_every": 0}
    (tmp_path / "own" / "config.json").write_text(json.dumps(document))
    convert(tmp_path / "own", tmp_path / "a.gguf")
    convert(tmp_path / "a.gguf", tmp_path / "back")
    own, back = (load_file(tmp_path / each / "model.safetensors") for each in ("own", "back"))
    assert all(each.equal(back[name]) for name, each in own.items())


def test_older_files_have_a_tensor_for_each_share(crossed: Path, tmp_path: Path) -> None:
    convert(make_checkpoint("rwkv6", crossed).path, tmp_path / "a.gguf")
    tree = open_weights(tmp_path / "a.gguf")
    source = source_of(tree)
    stored: dict[str, Any] = {name: tensor_of(source, name) for name in source.header.tensors}
    for layer in range(4):
        fused = stored.pop(f"blk.{layer}.time_mix_lerp_fused.weight")
        for place, part in enumerate("wkvrg"):
            name = f"blk.{layer}.time_mix_lerp_{part}.weight"
            stored[name] = DerivedTensor(name, RowRange(place, place + 1), [fused])
    apart = recognize(Checkpoint(Derived(source, stored, source.header.metadata)))
    apart.check()
    for part in "wkvrg":
        module = f"layers.2.rwkv.mix_{part}.weight"
        one, other = (each.weights[module].data() for each in (apart, recognize(tree)))
        assert np.array_equal(np.from_dlpack(one), np.from_dlpack(other))


# RWKV's original files are listed with their family, and become the same GGUF as others.


RWKV7 = {
    "model.embeddings": "emb", "model.norm": "ln_out", "lm_head": "head", "pre_norm": "ln0",
    "attn_norm": "ln1", "ffn_norm": "ln2", "g_norm": "ln_x", "r_proj": "receptance",
    "k_proj": "key", "v_proj": "value", "o_proj": "output", "model.layers": "blocks",
    "attn": "att",
}  # fmt: skip
RWKV6 = {"rwkv.": "", "attention": "att", "feed_forward": "ffn", "embeddings": "emb",
         "pre_ln": "ln0"}  # fmt: skip
LOW_RANK = re.compile(r"(\w)_lora\.lora\.(0\.weight|2\.weight|2\.bias)")
STEPS = {"0.weight": "1", "2.weight": "2", "2.bias": "0"}


def original(name: str, tensor: torch.Tensor, family: str) -> tuple[str, torch.Tensor]:
    """Return the name and the values of a tensor in BlinkDL's layout."""
    for old, new in (RWKV7 if family == "rwkv7" else RWKV6).items():
        name = name.replace(old, new)
    if family == "rwkv7":
        name, count = LOW_RANK.subn(lambda found: found[1] + STEPS[found[2]], name)
        if count and tensor.dim() == 2:
            tensor = tensor.T.contiguous()
        if re.search(r"\.(att\.([wav]0|k_k|k_a)|ffn\.x_k)$", name):
            tensor = tensor.reshape(1, 1, -1)
    return name, tensor


def write(family: str, crossed: Path, into: Path) -> tuple[Path, Path]:
    """Write a model in both layouts, and return the paths."""
    source = into / "hf"
    copytree(make_checkpoint(family, crossed).path, source)
    for file in source.glob("tokenizer*"):
        file.unlink()
    if family == "rwkv6":  # the original files state no other number
        config = json.loads((source / "config.json").read_text()) | {"rescale_every": 6}
        (source / "config.json").write_text(json.dumps(config))
    stored = load_file(source / "model.safetensors")
    tensors = dict(original(name, each, family) for name, each in stored.items())
    if family == "rwkv7":  # some files have these, which nothing reads
        tensors |= {f"blocks.0.att.v{step}": tensors[f"blocks.1.att.v{step}"] for step in range(3)}
    (into / "own").mkdir()
    torch.save(tensors, into / "own" / "model.pth")
    return source, into / "own" / "model.pth"


def arrays(path: Path) -> dict[str, Any]:
    tree = open_weights(path)
    return {name: np.from_dlpack(tree[name].data()) for name in header_of(tree).tensors}


@each("family", ["rwkv6", "rwkv7"])
def test_a_file_becomes_the_same_gguf(
    family: str, crossed: Path, tmp_path: Path, weightctl: Callable[..., Completed]
) -> None:
    source, own = write(family, crossed, tmp_path)
    convert(source, tmp_path / "a.gguf")
    convert(own, tmp_path / "b.gguf")
    expected, found = arrays(tmp_path / "a.gguf"), arrays(tmp_path / "b.gguf")
    assert found.keys() == expected.keys()
    assert [each for each in expected if not np.array_equal(found[each], expected[each])] == []
    one, other = (
        {
            key: value.content
            for key, value in header_of(open_weights(tmp_path / each)).metadata.items()
            if key.startswith(f"{family}.")
        }
        for each in ("a.gguf", "b.gguf")
    )
    assert one == other
    assert json.loads(weightctl("ls", own, "--json").stdout)["architecture"] == family


def test_a_file_without_a_tensor_that_states_a_size_is_refused(
    crossed: Path, tmp_path: Path
) -> None:
    _, own = write("rwkv6", crossed, tmp_path)
    tensors = torch.load(own, weights_only=True)
    del tensors["blocks.0.ffn.key.weight"]
    torch.save(tensors, own)
    with pytest.raises(ArchitectureError, match=r"`blocks\.0\.ffn\.key\.weight` is missing"):
        convert(own, tmp_path / "a.gguf")


# T5: an encoder, and a decoder that reads what the encoder makes.


LENGTH = 300


def config(**changes: object) -> Any:
    document = {"model_type": "t5", "num_heads": 2, "num_layers": 2, **changes}
    return from_hugging_face(FAMILIES["t5"].load(), document, "here").config


@each("is_causal", [True, False])
@each("buckets, farthest", [(32, 128), (8, 20)])
def test_distances_are_in_the_buckets_that_transformers_has(
    is_causal: bool, buckets: int, farthest: int
) -> None:
    made = config(relative_attention_num_buckets=buckets, relative_attention_max_distance=farthest)
    bias = RelativeBias(made, is_causal=is_causal, dtype=DType.float32)
    bias.name_weights()
    with Graph("bias", []) as graph:
        graph.output(bias(ops.range(LENGTH, device=CPU)))
    table = np.arange(buckets * 2, dtype=np.float32).reshape(buckets, 2)
    (found,) = executed(graph, weights={"weight": table})
    places = torch.arange(LENGTH)
    expected = modeling_t5.T5Attention._relative_position_bucket(
        places[None] - places[:, None], not is_causal, buckets, farthest
    )
    assert np.array_equal(found[0, 0], 2 * expected.numpy())


@pytest.mark.long
def test_logits_of_llama_cpp_are_larger_where_the_output_is_the_embedding(crossed: Path) -> None:
    made = make_checkpoint("t5-tied", crossed)
    path = made.path.with_name("for-llama.gguf")
    convert(made.path, path, to="gguf", dtype="f32", force=True)
    (found,) = ask(path, ("logits", made.tokens), context=512)
    hidden = transformers.AutoConfig.from_pretrained(made.path).d_model
    assert np.abs(found * hidden**-0.5 - made.expected).max() < 2e-3


@each("is_tied", [True, False])
def test_a_note_says_what_llama_cpp_computes_otherwise_where_the_output_is_the_embedding(
    *, is_tied: bool, tmp_path: Path
) -> None:
    save(tmp_path, is_tied=is_tied)
    notes = plan_of(open_weights(tmp_path), "gguf").notes
    expected = (
        "results of llama.cpp differ from transformers: it does not multiply the logits by the "
        "inverse root of the hidden size"
    )
    assert (expected in notes) is is_tied


def test_copies_of_the_embedding_are_left_out(tmp_path: Path) -> None:
    save(tmp_path / "hf", copies=True)
    assert not recognize(open_weights(tmp_path / "hf")).unexpected
    convert(tmp_path / "hf", tmp_path / "model.gguf", dtype="f32")
    names = header_of(open_weights(tmp_path / "model.gguf")).tensors
    assert [name for name in names if name in ("token_embd.weight", "output.weight")] == [
        "token_embd.weight"
    ]


def test_pipeline_stages_hold_the_encoder_before_the_decoder(tmp_path: Path) -> None:
    save(tmp_path / "hf")
    shard(tmp_path / "hf", tmp_path / "ranks", pp=2)
    first, second = (
        set(header_of(open_weights(path)).tensors)
        for path in sorted((tmp_path / "ranks").rglob("*.safetensors"))
    )
    assert not [name for name in first if name.startswith("decoder.block.1.")]
    assert not [name for name in second if name.startswith("encoder.block.1.")]
    assert "encoder.final_layer_norm.weight" in first & second


def test_an_activation_that_llama_cpp_lacks_is_refused() -> None:
    with pytest.raises(ArchitectureError, match=r"`feed_forward_proj` is `'gated-silu'`"):
        config(feed_forward_proj="gated-silu")


def test_distances_that_do_not_fill_the_buckets_are_refused() -> None:
    with pytest.raises(ArchitectureError, match="relative_attention_max_distance` is 8"):
        config(relative_attention_max_distance=8)


def save(path: Path, *, copies: bool = False, is_tied: bool = True) -> None:
    """Save a tiny T5, with the embedding by its other names if asked for."""
    made = transformers.T5Config(
        vocab_size=300, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        tie_word_embeddings=is_tied,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(made)
    untie_output(model)
    model.save_pretrained(path)
    if not copies:
        return
    tensors = load_file(path / "model.safetensors")
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = tensors["shared.weight"].clone()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
