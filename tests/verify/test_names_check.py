"""The findings of the check of names: tensors and tokens against the config, and suggestions."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import build
import small_models
from arrays import stored
from weightctl.verify import Request, Result, Subject
from weightctl.verify.checks.names import check
from weightctl.verify.figures import NamesFigures

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def llama() -> Any:
    return small_models.llama()


def written(directory: Path, model: Any, arrays: dict[str, Any] | None = None, **say: Any) -> Path:
    """Write a model's directory in which the config says otherwise in these keys."""
    directory.mkdir(exist_ok=True)
    stored(directory / "model.safetensors", **(arrays or small_models.arrays(model)))
    (directory / "config.json").write_text(json.dumps(model.config.to_dict() | say))
    return directory


def checked(path: Path) -> Result:
    return check(Request(subject=Subject(path)))


def causes(result: Result) -> dict[str, str | None]:
    return {
        problem.where: problem.cause.name if problem.cause else None for problem in result.problems
    }


def problems_by_place(result: Result) -> dict[str, str]:
    return {problem.where: str(problem) for problem in result.problems}


def without(model: Any, ending: str) -> dict[str, Any]:
    found = small_models.arrays(model)
    return {name: array for name, array in found.items() if not name.endswith(ending)}


def test_a_whole_model_has_no_problems(tiny_llama: Path) -> None:
    assert checked(tiny_llama) == Result(
        figures=NamesFigures(family="llama", layers=3, expected=30, found=30)
    )


def test_a_gguf_without_an_output_is_told_to_read_as_tied(smollm2: Path) -> None:
    result = checked(smollm2)
    assert result.problems == ()
    assert result.notes == (
        "there is no `output.weight`: the embedding is also the output matrix (tied embeddings)",
    )


def test_heads_that_a_model_computes_without_are_reported(minilm: Path) -> None:
    result = checked(minilm)
    assert result.problems == ()
    assert "`pooler.dense.bias`, `pooler.dense.weight`" in result.notes[0]


def test_a_missing_tensor_is_named_with_its_shape(llama: Any, tmp_path: Path) -> None:
    path = written(tmp_path, llama, without(llama, "layers.1.mlp.up_proj.weight"))
    (problem,) = checked(path).problems
    assert (problem.where, problem.text, problem.cause) == (
        "model.layers.1.mlp.up_proj.weight", "is missing; expected shape [96, 64]", None,
    )  # fmt: skip


def test_a_tensor_of_no_part_is_named(llama: Any, tmp_path: Path) -> None:
    more = {**small_models.arrays(llama), "model.extra.weight": np.ones((2, 2), np.float32)}
    assert causes(checked(written(tmp_path, llama, more))) == {"model.extra.weight": None}


def test_numbers_that_no_weights_are_stored_in_are_named(llama: Any, tmp_path: Path) -> None:
    more = {**small_models.arrays(llama), "model.norm.weight": np.ones(64, np.int32)}
    found = problems_by_place(checked(written(tmp_path, llama, more)))
    assert "has the encoding I32, which is not for weights" in found["model.norm.weight"]


def test_a_forgotten_output_is_told_so(llama: Any, tmp_path: Path) -> None:
    found = checked(written(tmp_path, llama, without(llama, "lm_head.weight")))
    assert causes(found) == {"lm_head.weight": "output_forgotten"}


def test_a_dropped_bias_is_told_so(tmp_path: Path) -> None:
    bert = small_models.bert()
    name = "encoder.layer.1.intermediate.dense.bias"
    assert causes(checked(written(tmp_path, bert, without(bert, name)))) == {name: "bias_dropped"}


def test_biases_that_the_config_denies_name_its_key(tmp_path: Path) -> None:
    model = small_models.llama(attention_bias=True)
    found = checked(written(tmp_path, model, attention_bias=False))
    assert set(causes(found).values()) == {"config"}
    assert "`attention_bias` is false" in str(found.problems[0])


def test_a_bias_that_the_first_layer_of_a_gguf_lacks_is_told_so(tmp_path: Path) -> None:
    model = small_models.llama(attention_bias=True)
    arrays = without(model, "layers.0.self_attn.q_proj.bias")
    small_models.write_gguf(tmp_path / "m.gguf", "llama", model.config, arrays)
    assert causes(checked(tmp_path / "m.gguf"))["blk.1.attn_q.bias"] == "bias_dropped"


@pytest.mark.parametrize(
    ("key", "wrong", "fits"),
    [
        ("num_attention_heads", 8, "4 would fit"),
        ("num_key_value_heads", 4, "2 would fit"),
        ("head_dim", 8, "16 would fit"),
        ("hidden_size", 32, "64 would fit"),
        ("intermediate_size", 95, "96 would fit"),
        ("num_hidden_layers", 1, "2 would fit"),
        ("num_hidden_layers", 3, "2 would fit"),
        ("vocab_size", 97, "96 would fit"),
    ],
)
def test_a_size_that_contradicts_the_shapes_is_named_with_the_one_that_fits(
    key: str, wrong: int, fits: str, llama: Any, tmp_path: Path
) -> None:
    first, *others = checked(written(tmp_path, llama, **{key: wrong})).problems
    assert first.where == key
    assert others[0].cause == first.cause
    assert f"`{key}` is {wrong}; {fits}" in str(first.cause)


@pytest.mark.parametrize(
    ("key", "wrong", "fits"),
    [
        ("num_attention_heads", 7, "4 would fit"),
        ("num_attention_heads", 3, "4 would fit"),
        ("num_key_value_heads", 3, "2 would fit"),
        ("num_hidden_layers", 400, "2 would fit"),
    ],
)
def test_a_config_that_is_refused_is_named_with_the_value_that_fits(
    key: str, wrong: int, fits: str, llama: Any, tmp_path: Path
) -> None:
    (problem,) = checked(written(tmp_path, llama, head_dim=None, **{key: wrong})).problems
    assert problem.where == key
    assert f"`{key}` is {wrong}; {fits}" in str(problem.cause)


def test_of_several_values_that_would_fit_all_are_named(tmp_path: Path) -> None:
    (problem,) = checked(written(tmp_path, small_models.gpt2(), n_head=5)).problems
    assert problem.cause is not None
    assert problem.cause.text == "`n_head` is 5; any of 1, 2, 4, 8, ... would fit"


def test_a_gguf_names_its_own_key(llama: Any, tmp_path: Path) -> None:
    model = small_models.llama(num_key_value_heads=4)
    small_models.write_gguf(tmp_path / "m.gguf", "llama", model.config, small_models.arrays(llama))
    first = checked(tmp_path / "m.gguf").problems[0]
    assert first.where == "llama.attention.head_count_kv"
    assert "is 4; 2 would fit" in str(first.cause)


def test_experts_that_are_fewer_than_the_config_says_name_its_key(tmp_path: Path) -> None:
    model = small_models.mixtral()
    (problem,) = checked(written(tmp_path, model, num_local_experts=8)).problems
    assert problem.where == "num_local_experts"
    assert "is 8; 4 would fit" in str(problem.cause)


def test_matrices_that_lie_the_other_way_round_are_told_so(tmp_path: Path) -> None:
    model = small_models.gpt2()
    arrays = {
        name: array.T.copy() if ".mlp.c_fc.weight" in name else array
        for name, array in small_models.arrays(model).items()
    }
    found = checked(written(tmp_path, model, arrays))
    assert causes(found) == dict.fromkeys(
        [f"transformer.h.{n}.mlp.c_fc.weight" for n in range(2)], "transposed"
    )


def test_what_is_alike_in_many_layers_is_one_problem(tmp_path: Path) -> None:
    model = small_models.llama(num_hidden_layers=6)
    (problem,) = checked(written(tmp_path, model, without(model, "up_proj.weight"))).problems
    assert problem.where == "model.layers.0.mlp.up_proj.weight"
    assert (
        "; 5 more tensors have this problem, up to `model.layers.5.mlp.up_proj.weight`"
        in problem.text
    )


def test_rows_behind_the_vocabulary_are_a_problem(llama: Any, tmp_path: Path) -> None:
    result = checked(written(tmp_path, llama, vocab_size=95))
    assert causes(result) == {"model.embed_tokens.weight": "config", "lm_head.weight": "config"}


def test_a_tied_output_that_differs_is_a_problem(llama: Any, tmp_path: Path) -> None:
    result = checked(written(tmp_path, llama, tie_word_embeddings=True))
    assert causes(result) == {"lm_head.weight": "tied"}


def test_a_tied_output_that_is_the_embedding_is_reported(tmp_path: Path) -> None:
    model = small_models.llama(tie_word_embeddings=True)
    arrays = small_models.arrays(model)
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
    result = checked(written(tmp_path, model, arrays))
    assert result.problems == ()
    assert result.notes == ("`lm_head.weight` is stored although it is tied to the embedding",)


def test_an_output_that_is_a_copy_of_the_embedding_is_reported(llama: Any, tmp_path: Path) -> None:
    arrays = small_models.arrays(llama)
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
    result = checked(written(tmp_path, llama, arrays))
    assert result.problems == ()
    assert result.notes[0].startswith("`lm_head.weight` is equal to the embedding")


def test_more_tokens_than_the_embedding_has_rows_are_a_problem(
    tiny_llama: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_llama, tmp_path / "model")
    tokenizer = tmp_path / "model" / "tokenizer.json"
    document = json.loads(tokenizer.read_bytes())
    document["model"]["vocab"]["one more"] = 512
    tokenizer.write_text(json.dumps(document))
    found = problems_by_place(checked(tmp_path / "model"))
    assert "has 513 tokens, and the embedding has 512 rows" in found[str(tokenizer)]


def test_added_tokens_that_the_embedding_has_no_rows_for_are_reported(
    llama: Any, tmp_path: Path
) -> None:
    document = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 96, "content": "b"}]}
    path = written(tmp_path, llama)
    (path / "tokenizer.json").write_text(json.dumps(document))
    result = checked(path)
    assert (result.problems, len(result.notes)) == ((), 1)
    assert "added tokens up to 96" in result.notes[0]


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"a":' * 100_000])
def test_a_damaged_tokenizer_is_a_problem(content: bytes, llama: Any, tmp_path: Path) -> None:
    path = written(tmp_path, llama)
    (path / "tokenizer.json").write_bytes(content)
    (problem,) = checked(path).problems
    assert "tokenizer.json: the file is not" in problem.text


@pytest.mark.parametrize(
    "document",
    [{"model": []}, {"model": {"vocab": 3}}, {"model": {"vocab": {"a": "b", "c": 1.5}}},
     {"model": {"vocab": {}}, "added_tokens": [1, {"id": None}, {}]}],
)  # fmt: skip
def test_a_strange_tokenizer_is_not_a_traceback(document: Any, llama: Any, tmp_path: Path) -> None:
    path = written(tmp_path, llama)
    (path / "tokenizer.json").write_text(json.dumps(document))
    assert checked(path).problems == ()


def test_the_lists_of_a_ggufs_tokens_are_as_long_as_its_embedding(
    llama: Any, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    small_models.write_gguf(path, "llama", llama.config, small_models.arrays(llama))
    values: Any = {
        "tokenizer.ggml.tokens": ("array[string]", ["a"] * 95),
        "tokenizer.ggml.scores": ("array[f32]", [0.0] * 96),
    }
    _add_values(path, values)
    found = problems_by_place(checked(path))
    assert "there are 95 tokens, and the embedding has 96 rows" in found["tokenizer.ggml.tokens"]
    assert "has 96 elements for 95 tokens" in found["tokenizer.ggml.scores"]


def _add_values(path: Path, values: dict[str, Any]) -> None:
    """Put metadata values before those of a file; its data stays where the padding has it."""
    raw = path.read_bytes()
    gguf = build.Gguf()
    count = int.from_bytes(raw[16:24], "little") + len(values)
    more = b"".join(gguf.string(key) + gguf.value(*value) for key, value in values.items())
    # Whole multiples of the alignment, so that all behind it moves and nothing else changes.
    size = -(len(more) + len(gguf.string("fill") + gguf.value("string", ""))) % 32
    more += gguf.string("fill") + gguf.value("string", "x" * size)
    path.write_bytes(raw[:16] + gguf.number("u64", count + 1) + more + raw[24:])


def test_an_unknown_family_is_skipped_with_the_nearest_one(llama: Any, tmp_path: Path) -> None:
    result = checked(written(tmp_path, llama, model_type="zamba2"))
    assert result.problems == ()
    assert "`zamba2`" in result.skipped.replace("'", "")
    assert "the closest is llama, which has 12 of the 12 tensor names" in result.skipped


def test_a_directory_of_a_family_s_names_lacks_its_config(llama: Any, tmp_path: Path) -> None:
    path = written(tmp_path, llama)
    (path / "config.json").unlink()
    (problem,) = checked(path).problems
    assert problem.text.startswith("config.json is missing")
    assert problem.where == str(path)


def test_a_file_without_a_config_is_skipped(llama: Any, tmp_path: Path) -> None:
    path = written(tmp_path, llama)
    (path / "config.json").unlink()
    result = checked(path / "model.safetensors")
    assert result.problems == ()
    assert "config.json: No such file or directory" in result.skipped
    assert "the closest is llama, which has 12 of the 12 tensor names" in result.skipped


def test_a_config_that_cannot_be_read_is_a_problem(llama: Any, tmp_path: Path) -> None:
    path = written(tmp_path, llama)
    (path / "config.json").write_text("{")
    (problem,) = checked(path).problems
    assert problem.where == str(path / "config.json")
    assert "the file is not valid JSON" in problem.text


def test_a_vocabulary_alone_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(build.Gguf().file([], {"general.architecture": ("string", "llama")}))
    assert checked(path).skipped == "there are no tensors"
