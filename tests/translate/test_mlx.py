"""Directories that mlx_lm.convert wrote: read, and written in Hugging Face's form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tiny
import weightctl
from arrays import weights_of
from commands import run_command
from each import each
from mlx_form import as_mlx
from weightctl.errors import ArchitectureError
from weightctl.families import RecognizedModel, recognize
from weightctl.translate import translate
from weightctl.weights.derived import Derived, StoredTensor
from weightctl.weights.metadata import text
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

# One of each kind of difference.
USUAL = (
    "deepseek_v3", "qwen3next", "kimi_linear", "granitehybrid-dense", "nemotron_h_moe", "rwkv7",
)  # fmt: skip
# The other cases whose tensors mlx-lm stores otherwise than Hugging Face.
OTHERS = (
    "afmoe", "afmoe-tied", "apertus", "bailingmoe", "bailingmoe-biases", "deepseek_v2",
    "deepseek_v2-lite", "deepseek_v32", "deepseek_v32-yarn", "dots1", "exaone_moe", "falcon_mamba",
    "glm4_moe", "glm_moe_dsa", "granite4", "granite4-unrotated", "granitehybrid", "granitemoe",
    "jamba", "jamba-tied", "lfm2", "lfm2_moe", "mamba", "mamba2", "minimax_m2", "mistral4",
    "mistral4-tied", "mixtral", "nemotron_h", "nemotron_h_moe-latent", "olmoe", "phimoe", "plamo2",
    "qwen2moe", "qwen35", "qwen35-tied", "qwen35moe", "qwen3moe", "recurrent_gemma",
)  # fmt: skip
ROWS = [*USUAL, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]


def write(path: Path, tensors: Mapping[str, NDArray[Any]], config: Mapping[str, Any]) -> Path:
    path.mkdir()
    save_file(dict(tensors), path / "model.safetensors", metadata={"format": "mlx"})
    (path / "config.json").write_text(json.dumps(config))
    return path


def read_mlx(source: RecognizedModel) -> RecognizedModel:
    """Return a model in memory as one that MLX wrote."""
    stored = weights_of(as_mlx(tiny.arrays_of(source), source.document)).source
    tensors = {name: StoredTensor(stored, name) for name in stored.header.tensors}
    tree = Checkpoint(Derived(stored, tensors, {"format": text("mlx")}))
    return recognize(tree, source.document)


def write_mlx(path: Path, name: str, config: Mapping[str, Any] | None = None) -> Path:
    """Write a tiny model in the form of MLX."""
    made = tiny.make(name)
    document = made.document if config is None else config
    return write(path, as_mlx(tiny.arrays_of(made), document), document)


def assert_equal(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert found[name].shape == values.shape, name
        # Adding 1 and subtracting it again rounds.
        most = 2e-7 if "norm" in name else 0
        assert np.abs(found[name].astype(np.float64) - values).max() <= most, name


@each("name", ROWS)
def test_tensors_in_the_form_of_mlx_are_those_of_hugging_face(name: str) -> None:
    source = tiny.make(name)
    read = read_mlx(source)
    assert read.has_mlx_form
    back = recognize(translate(read, "hugging_face").weights, source.document)
    assert not back.has_mlx_form
    assert_equal(tiny.arrays_of(back), tiny.arrays_of(source))


@each("name", USUAL[:2])
def test_a_gguf_has_the_values_of_one_from_hugging_face(name: str) -> None:
    source = tiny.make(name)
    assert_equal(
        tiny.arrays_of(tiny.as_gguf(read_mlx(source))), tiny.arrays_of(tiny.as_gguf(source))
    )


def test_a_directory_gets_the_form_of_hugging_face(tmp_path: Path) -> None:
    made = tiny.make("qwen3next")
    halves = {
        name: values.astype("f4" if name.endswith("A_log") else "f2")
        for name, values in tiny.arrays_of(made).items()
    }
    source = write(tmp_path / "mlx", as_mlx(halves, made.document), made.document)
    (source / "vocab.json").write_text("{}")
    done = weightctl.convert(source, tmp_path / "hf")
    found = load_file(tmp_path / "hf" / "model.safetensors")
    assert {name: values.dtype for name, values in found.items()} == {
        name: values.dtype for name, values in halves.items()
    }
    for name, values in found.items():
        rounded = 2**-10 if "norm" in name else 0  # F16 near 1
        assert np.abs(values.astype("f8") - halves[name]).max() <= rounded, name
    assert json.loads((tmp_path / "hf" / "config.json").read_text()) == made.document
    assert (tmp_path / "hf" / "vocab.json").exists()
    (note,) = done.notes
    assert note.startswith(f"{source / 'config.json'}: tensors of this qwen3next model have the")


def test_the_text_model_of_a_multimodal_model_becomes_a_model(tmp_path: Path) -> None:
    made = tiny.make("qwen35")
    config = {
        "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": {**made.document, "eos_token_id": 7}, "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }  # fmt: skip
    source = write_mlx(tmp_path / "mlx", "qwen35", config)
    weightctl.convert(source, tmp_path / "hf")
    assert_equal(load_file(tmp_path / "hf" / "model.safetensors"), tiny.arrays_of(made))
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert written["model_type"] == "qwen3_5_text"
    assert written["architectures"] == ["Qwen3_5ForCausalLM"]
    assert (written["eos_token_id"], written["torch_dtype"]) == (7, "float32")
    assert recognize(weightctl.open_weights(tmp_path / "hf")).fields == made.fields


def test_layers_for_mtp_that_mlx_left_out_are_no_longer_stated(tmp_path: Path) -> None:
    config = {**tiny.make("deepseek_v3").document, "num_nextn_predict_layers": 1}
    source = write_mlx(tmp_path / "mlx", "deepseek_v3", config)
    done = weightctl.convert(source, tmp_path / "hf")
    assert any("the output states 0" in note for note in done.notes)
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert written["num_nextn_predict_layers"] == 0


def quantized(path: Path) -> tuple[Path, Path]:
    """Return a directory that is quantized under Hugging Face's names, and one under MLX's."""
    tiny.write(path / "source", "qwen3moe", hidden_size=128, head_dim=32)
    weightctl.convert(path / "source", path / "apart", quant="MLX-4bit:group=32")
    config = json.loads((path / "apart" / "config.json").read_text())
    tensors: Arrays = {}
    for file in (path / "apart").glob("*.safetensors"):
        tensors |= load_file(file)
    return path / "apart", write(path / "mlx", as_mlx(tensors, config), config)


def test_quantized_experts_are_decoded_from_one_tensor(tmp_path: Path) -> None:
    apart, source = quantized(tmp_path)
    for name, options in (("f32.gguf", {}), ("f32", {"dtype": "f32"})):
        for each_source, folder in ((apart, "of-apart"), (source, "of-mlx")):
            (tmp_path / folder).mkdir(exist_ok=True)
            weightctl.convert(each_source, tmp_path / folder / name, **options)
        found, wanted = (
            {
                key: node.data().astype("float32").to_numpy()
                for key, node in weightctl.open_weights(tmp_path / folder / name).items()
            }
            for folder in ("of-mlx", "of-apart")
        )
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[key], wanted[key]) for key in wanted)
    config = json.loads((tmp_path / "of-mlx" / "f32" / "config.json").read_text())
    assert "quantization" not in config


@each(
    "name, is_noted",
    [
        ("qwen2moe", False), ("olmoe", False), ("ernie4_5_moe", True), ("granite4", True),
        ("kimi_linear", True), ("lfm2_moe", True), ("minimax_m2", True), ("nemotron_h_moe", True),
        ("qwen3moe", True), ("qwen3next", True),
    ],
)  # fmt: skip
def test_a_note_names_quantized_weights_that_mlx_does_not_load(
    tmp_path: Path, name: str, is_noted: bool
) -> None:
    source = tiny.write(tmp_path / "source", name)
    done = weightctl.convert(source, tmp_path / "out", quant="MLX-4bit", dry_run=True)
    assert any("mlx-lm does not load" in note for note in done.notes) == is_noted
    other = weightctl.convert(source, tmp_path / "out", quant="W4A16", dry_run=True)
    assert not any("mlx-lm" in note for note in other.notes)


def test_a_quantized_directory_that_is_copied_stays_one_of_mlx(tmp_path: Path) -> None:
    _, source = quantized(tmp_path)
    done = weightctl.convert(source, tmp_path / "copy")
    assert any("keep the form of MLX" in note and "--dtype" in note for note in done.notes)
    wanted = load_file(source / "model.safetensors")
    found = load_file(tmp_path / "copy" / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[key], wanted[key]) for key in wanted)


REFUSED = {
    # The name of a case, a function of the tensors in the form of MLX, and what the error names.
    "multiplied": ("falcon_h1", dict, "`model.layers.0.mamba.conv1d.weight` has its axes in MLX"),
    "extra": (
        "qwen3moe",
        lambda tensors: tensors | {"model.layers.0.mlp.switch_mlp.gate.bias": np.ones(4, "f4")},
        "`model.layers.0.mlp.switch_mlp.gate.bias` is not a part of qwen3moe",
    ),
    "unknown names": (
        "gpt2",
        lambda tensors: {f"model.{name}": values for name, values in tensors.items()},
        "is not a part of gpt2",
    ),
}  # fmt: skip


@each("fault", REFUSED)
def test_a_form_that_is_not_understood_is_refused(tmp_path: Path, fault: str) -> None:
    name, change, named = REFUSED[fault]
    made = tiny.make(name)
    source = write(
        tmp_path / "mlx", change(as_mlx(tiny.arrays_of(made), made.document)), made.document
    )
    for out in ("out", "out.gguf"):
        with pytest.raises(ArchitectureError) as error:
            weightctl.convert(source, tmp_path / out)
        assert named in error.value.message
        assert "convert the original checkpoint of Hugging Face" in error.value.hint
        assert not (tmp_path / out).exists()


def test_diff_and_verify_find_no_difference(tmp_path: Path) -> None:
    source, other = (
        write_mlx(tmp_path / "mlx", "qwen3next"),
        tiny.write(tmp_path / "hf", "qwen3next"),
    )
    for command in (
        ("diff", "--values", source, other),
        ("verify", "--check", "values", source, "--against", other),
    ):
        done = run_command(*command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_shard_refuses_the_form_of_mlx(tmp_path: Path) -> None:
    source = write_mlx(tmp_path / "mlx", "qwen3moe")
    done = run_command("shard", source, tmp_path / "out", "--tp", "2")
    assert done.returncode == 2
    assert "weightctl convert MODEL OUT/" in done.stderr


def test_tensors_that_the_class_lacks_are_copied_with_a_note(tmp_path: Path) -> None:
    made = tiny.make("llama")
    tensors = tiny.arrays_of(made) | {"model.extra.weight": np.ones((2, 2), "f4")}
    source = write(tmp_path / "source", tensors, made.document)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    done = weightctl.convert(source, tmp_path / "copy")
    assert "copied, although llama models do not have these tensors: model.extra.weight" in (
        done.notes
    )
    assert "model.extra.weight" in load_file(tmp_path / "copy" / "model.safetensors")


def test_a_model_of_unknown_family_is_copied_with_a_note(tmp_path: Path) -> None:
    source = write(tmp_path / "mlx", {"a.weight": np.ones((2, 2), "f4")}, {"model_type": "other"})
    done = weightctl.convert(source, tmp_path / "copy")
    assert any("keep the form of MLX" in note for note in done.notes)
    save_file(
        {"a.switch_mlp.up_proj.weight": np.ones((2, 2, 2), "f4")}, source / "model.safetensors"
    )
    with pytest.raises(ArchitectureError, match="does not support"):
        weightctl.convert(source, tmp_path / "other")


@pytest.mark.long
@each("name", ["qwen3moe", "qwen3next", "qwen35", "deepseek_v3", "lfm2"])
def test_transformers_computes_the_same_logits(tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    import small_models

    tiny.write(tmp_path / "hf", name)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    if name == "qwen35":
        config = {"model_type": "qwen3_5", "text_config": config}
    weightctl.convert(write_mlx(tmp_path / "mlx", name, config), tmp_path / "back")
    found, wanted = (
        AutoModelForCausalLM.from_pretrained(tmp_path / each, output_loading_info=True)
        for each in ("back", "hf")
    )
    loaded = found[1]
    assert not any(loaded[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens = small_models.tokens_below(256, 2, 12)
    logits = [small_models.logits(each[0], tokens) for each in (found, wanted)]
    assert np.abs(logits[0] - logits[1]).max() < 1e-4 * np.abs(logits[1]).max()
