"""`weightctl.convert`: the conversion command, in Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from each import each
from lazy import torch
from weightctl import DType, Plan, QuantizationEncoding, convert, open_weights, save
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError, MissingTensorError, OutputError
from weightctl.plan.cast import cast
from weightctl.plan.recipe_lines import LLAMA_RECIPES
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

ARRAYS = {
    "a.weight": np.linspace(-1, 1, 512, dtype=np.float32).reshape(2, 256),
    "b.weight": np.arange(4, dtype=np.float32),
}


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, []),
        ({"dtype": "f16"}, ["--dtype", "f16"]),
        ({"dtype": torch.float16}, ["--dtype", "f16"]),
        ({"quant": "Q4_K_M"}, ["--quant", "Q4_K_M"]),
        ({"quant": LLAMA_RECIPES["Q4_K_M"]}, ["--quant", "q4_k_m"]),
        (
            {"tensor_types": {"attn_v": QuantizationEncoding.Q8_0, "norm": "keep"}},
            ["--tensor-type", "attn_v=Q8_0", "--tensor-type", "norm=keep"],
        ),
        ({"include": ["*norm*"], "exclude": ["output_norm*"]},
         ["--include", "*norm*", "--exclude", "output_norm*"]),
        ({"metadata": {"general.name": "mine", "llama.context_length": 9}},
         ["--set", "general.name=mine", "--set", "llama.context_length=9"]),
        ({"unset": ["general.type"]}, ["--unset", "general.type"]),
        ({"align": 4096}, ["--align", "4096"]),
        ({"align": "4kiB"}, ["--align", "4096B"]),
        ({"names": "keep"}, ["--names", "keep"]),
    ],
)  # fmt: skip
def test_the_function_writes_what_the_command_writes(
    weightctl: Run,
    tiny_llama: Path,
    tmp_path: Path,
    options: dict[str, Any],
    arguments: list[str],
) -> None:
    done = convert(tiny_llama, tmp_path / "function.gguf", **options)
    output = weightctl("convert", tiny_llama, tmp_path / "command.gguf", *arguments)
    assert output.returncode == 0, output.stderr
    assert done.paths == [str(tmp_path / "function.gguf")]
    written = (tmp_path / "function.gguf").read_bytes()
    assert written == (tmp_path / "command.gguf").read_bytes()


def test_parts_are_as_large_as_a_number_or_a_text_says(tiny_llama: Path, tmp_path: Path) -> None:
    for name, size in (("one", 1_000_000), ("other", "1MB")):
        done = convert(tiny_llama, tmp_path / name, max_shard_size=size, memory="64MiB")
        assert len(done.paths) > 2
    one, other = ([each.read_bytes() for each in sorted((tmp_path / name).glob("*.safetensors"))]
                  for name in ("one", "other"))  # fmt: skip
    assert one == other


def test_a_dry_run_writes_nothing_and_can_be_carried_out(tmp_path: Path) -> None:
    planned = convert(ARRAYS, tmp_path / "out.safetensors", dtype=np.float16, dry_run=True)
    assert planned.saved is None
    assert planned.losses == {}
    assert not list(tmp_path.iterdir())
    done = planned.save()
    assert done.saved is not None
    assert done.losses.keys() == ARRAYS.keys()
    assert (tmp_path / "out.safetensors").stat().st_size == planned.outcome.nbytes


@pytest.mark.parametrize("suffix", ["gguf", "safetensors", "pt"])
@pytest.mark.parametrize(
    "source",
    [
        ARRAYS,
        {name: torch.from_numpy(array).requires_grad_() for name, array in ARRAYS.items()},
        {name: array.astype(ml_dtypes.bfloat16) for name, array in ARRAYS.items()},
    ],
    ids=["numpy", "torch", "bfloat16"],
)
def test_arrays_by_name_are_converted(source: Any, suffix: str, tmp_path: Path) -> None:
    out = tmp_path / f"out.{suffix}"
    convert(source, out, dtype=DType.float16)
    for name, node in open_weights(out).items():
        expected = np.asarray(
            source[name].detach() if isinstance(source[name], torch.Tensor) else source[name]
        )
        assert np.array_equal(np.asarray(node), expected.astype(np.float16))


def test_a_plan_is_carried_out(tmp_path: Path) -> None:
    plan = Plan.copy(ARRAYS, "gguf").only({"a.weight"})
    convert(plan, tmp_path / "out.gguf", quant=QuantizationEncoding.Q8_0)
    (node,) = (node for _, node in open_weights(tmp_path / "out.gguf").items())
    assert node.dtype is QuantizationEncoding.Q8_0


def test_a_node_of_a_tree_is_stored_with_its_full_names(tiny_llama: Path, tmp_path: Path) -> None:
    weights = open_weights(tiny_llama)
    convert(weights.model.layers[1].mlp, tmp_path / "mlp.gguf")
    assert sorted(name for name, _ in open_weights(tmp_path / "mlp.gguf").items()) == [
        f"model.layers.1.mlp.{name}_proj.weight" for name in ("down", "gate", "up")
    ]


def test_values_of_metadata_get_the_types_of_gguf(tmp_path: Path) -> None:
    values = {
        "a": "text", "b": True, "c": 3, "d": -3, "e": 0.5, "f": [1, 2], "g": ["x"], "h": [1, -1],
        "i": MetadataValue("array[u8]", [1]), "j": MetadataValue("u64", 1), "k": float("inf"),
        "l": [True], "m": "5",
    }  # fmt: skip
    convert(ARRAYS, tmp_path / "out.gguf", metadata=values)
    found = open_weights(tmp_path / "out.gguf").header.metadata
    types = {key: found[key].type for key in values}
    assert types == {
        "a": "string", "b": "bool", "c": "u32", "d": "i64", "e": "f32", "f": "array[u32]",
        "g": "array[string]", "h": "array[i64]", "i": "array[u8]", "j": "u64", "k": "f32",
        "l": "array[bool]", "m": "string",
    }  # fmt: skip
    for key, value in values.items():
        stored = found[key].content
        expected = value.content if isinstance(value, MetadataValue) else value
        assert (list(stored) if isinstance(expected, list) else stored) == expected


@each(
    ("options", "says"),
    [
        ({"dtype": "f16", "quant": "Q8_0"}, "both given"),
        ({"dtype": QuantizationEncoding.Q8_0}, "cannot be used as the dtype of weights"),
        ({"dtype": DType.int8}, "cannot be used as the dtype of weights"),
        ({"quant": DType.bfloat16}, "cannot quantize to BF16"),
        ({"quant": QuantizationEncoding.Q8_K}, "cannot quantize to Q8_K"),
        ({"quant": "Q9"}, "is neither a recipe nor a type"),
        ({"quant": "no/such.toml"}, "cannot read the recipe"),
        ({"tensor_types": {"a": "int8"}}, "cannot be used as the dtype"),
        ({"tensor_types": {"zzz": "Q8_0"}}, "no tensor's name matches"),
        ({"tensor_types": {"(": "Q8_0"}}, r"\("),
        ({"nonfinite": "drop"}, "nonfinite cannot be 'drop'"),
        ({"names": "ollama"}, "names cannot be 'ollama'"),
        ({"metadata": {"k": object()}}, "cannot be set to"),
        ({"metadata": {"k": [1, "x"]}}, "cannot be set to"),
        ({"metadata": {"k": []}}, "cannot be set to"),
        ({"max_shard_size": 0}, "must be more than 0"),
        ({"max_shard_size": -1}, "must be more than 0"),
        ({"align": 48}, "an alignment of 48 bytes"),
        ({"memory": 10}, "is too little"),
        ({"source_format": "gguf"}, "applies to a path"),
        ({"rename": {"zzz": "a"}}, "no tensor's name matches"),
        ({"rename": "no-such.toml"}, "no-such.toml"),
        ({"rename": ["a=b", "no-such.toml"]}, "no-such.toml"),
        ({"rename": {"a": "\\1"}}, "invalid group reference"),
        ({"to": "onnx"}, "is not a supported format"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises((ConversionError, ValueError), match=says):
        convert(ARRAYS, tmp_path / "out.gguf", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options", [{"names": "hf"}, {"rename": {"a": "b"}}, {"include": ["a*"]}, {"exclude": ["a*"]}]
)
def test_what_a_plan_has_decided_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="do not apply to a plan"):
        convert(Plan.copy(ARRAYS, "gguf"), tmp_path / "out.gguf", **options)
    with pytest.raises(ConversionError, match="is for safetensors"):
        convert(Plan.copy(ARRAYS, "safetensors"), tmp_path / "out.gguf")


def test_a_node_where_nothing_is_and_a_renamed_node_are_refused(tmp_path: Path) -> None:
    weights = open_weights("fixtures/tiny-llama")
    with pytest.raises(MissingTensorError, match=r"no tensor is named `model\.layer`"):
        convert(weights.model.layer, tmp_path / "out.gguf")
    with pytest.raises(ConversionError, match="a part of one"):
        convert(weights.model, tmp_path / "out.gguf", rename={"a": "b"})


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_what_is_not_a_number_of_threads_is_refused(threads: Any, tmp_path: Path) -> None:
    for write in (convert, save):
        with pytest.raises(
            ConversionError, match=re.escape(f"{threads!r} is not a valid number of threads")
        ):
            write(ARRAYS, tmp_path / "out.gguf", threads=threads)
    assert not list(tmp_path.iterdir())


def test_saving_takes_memory_as_text_too(tmp_path: Path) -> None:
    save(ARRAYS, tmp_path / "out.gguf", memory="10MB")
    with pytest.raises(ConversionError, match="1kB of memory is too little"):
        convert(ARRAYS, tmp_path / "other.gguf", memory="1kB")


def test_what_is_printed_of_a_conversion_is_a_line(tiny_llama: Path, tmp_path: Path) -> None:
    planned = convert(tiny_llama, tmp_path / "out.gguf", quant="Q4_K_M", dry_run=True)
    done = planned.save()
    for made in (planned, done, planned.plan, planned.outcome, done.saved):
        assert len(repr(made)) < 300
    assert repr(planned.plan) == "<Plan for gguf: 30 tensors, 1.17 MB>"


def test_a_conversion_says_what_a_person_should_know(tiny_llama: Path, tmp_path: Path) -> None:
    arrays = {"w": np.zeros((2, 256), np.float32)}
    planned = convert(arrays, tmp_path / "out.gguf", quant="Q4_K", dry_run=True)
    assert any(note.startswith("no tensor is quantized: only matrices") for note in planned.notes)
    assert any("llama.cpp does not load the output" in note for note in planned.notes)
    assert not convert(tiny_llama, tmp_path / "out.gguf", quant="Q4_K", dry_run=True).notes


@pytest.mark.parametrize("rule", [{"^a": "x"}, "^a=x", ["^a=x", "^b=y"]])
def test_names_are_changed_by_a_mapping_a_rule_or_rules(
    rule: dict[str, str] | str | list[str], tmp_path: Path
) -> None:
    arrays = {"a.w": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}
    done = convert(arrays, tmp_path / "out.safetensors", rename=rule, dry_run=True)
    assert "x.w" in [item.info.name for item in done.plan.items]


def test_one_pattern_may_be_given_as_text(tiny_llama: Path, tmp_path: Path) -> None:
    one: dict[str, Any] = {"include": "*norm*", "exclude": "output_norm*", "unset": "general.type"}
    done = convert(tiny_llama, tmp_path / "out.gguf", **one, dry_run=True)
    assert all("norm" in item.info.name for item in done.plan.items)
    assert "general.type" not in done.plan.metadata


WRONG: dict[str, Any] = {"tree": open_weights("fixtures/tiny-llama"), "arrays": ARRAYS}


@pytest.mark.parametrize(("given", "kind"), [("tree", "Checkpoint"), ("arrays", "dict")])
def test_cast_takes_a_plan(given: str, kind: str) -> None:
    with pytest.raises(ConversionError, match=f"a Plan, not {kind}"):
        cast(WRONG[given], "f16")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tensor_types": "a=Q8_0"}, "must be a mapping from patterns to types, not `a=Q8_0`"),
        ({"metadata": [("a", "b")]}, "metadata is a mapping from keys to values"),
    ],
)
def test_options_of_other_types_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConversionError, match=says):
        convert(ARRAYS, "a.gguf", **options)


def test_what_is_there_stays_without_force(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"mine")
    with pytest.raises(OutputError, match="exists"):
        convert(ARRAYS, out)
    assert out.read_bytes() == b"mine"
    convert(ARRAYS, out, force=True)
    assert out.read_bytes() != b"mine"


@pytest.mark.parametrize(
    ("spellings", "name"),
    [
        ([DType.float16, "f16", "float16", np.float16, np.dtype("f2"), torch.float16,
          ENCODINGS["F16"]], "F16"),
        ([QuantizationEncoding.Q8_0, "q8_0", "Q8_0", ENCODINGS["Q8_0"],
          LLAMA_RECIPES["Q8_0"]], "Q8_0"),
    ],
)  # fmt: skip
def test_cast_takes_a_type_in_any_spelling(spellings: list[Any], name: str) -> None:
    plan = Plan.copy(ARRAYS, "gguf")
    for spelling in spellings:
        made = {item.info.name: item.info.encoding.name for item in cast(plan, spelling).items}
        assert made["a.weight"] == name, spelling
        rules = cast(plan, None, {"^a": spelling} if spelling not in LLAMA_RECIPES.values() else {})
        assert rules.items[0].info.encoding.name in {name, "F32"}


def test_cast_takes_the_file_of_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("default = 'Q8_0'\n")
    for given in (path, str(path)):
        made = cast(Plan.copy(ARRAYS, "gguf"), given)
        assert made.items[0].info.encoding.name == "Q8_0"
