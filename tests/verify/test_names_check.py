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
from each import each
from lazy import load_file, save_file, torch
from verdicts import explain, report_on, saved
from weightctl import convert
from weightctl.cli import app
from weightctl.verify import Request, Result, Subject, verify_request
from weightctl.verify.checks.names import check
from weightctl.verify.figures import NamesFigures, ValuesFigures
from weightctl.verify.report.screen import verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from weightctl.verify import Report


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


@each(
    "key, wrong, fits",
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


@each(
    "key, wrong, fits",
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


@each("content", [b"{", b"[]", b"\xff", b'{"a":' * 100_000])
def test_a_damaged_tokenizer_is_a_problem(content: bytes, llama: Any, tmp_path: Path) -> None:
    path = written(tmp_path, llama)
    (path / "tokenizer.json").write_bytes(content)
    (problem,) = checked(path).problems
    assert "tokenizer.json: the file is not" in problem.text


@each(
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
    small_models.write(path, llama)
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


# Other models, other names and a single rank's file are each one short finding.


CHECKS = ("structure", "finite", "names", "metadata", "values", "forward")


def renamed(tiny_llama: Path, out: Path, rename: Callable[[str], str]) -> Path:
    shutil.copytree(tiny_llama, out)
    tensors = load_file(out / "model.safetensors")
    save_file({rename(name): each for name, each in tensors.items()}, out / "model.safetensors")
    return out


def run(*arguments: object) -> None:
    assert not app([*map(str, arguments), "-q"], standalone_mode=False)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    out = tmp_path_factory.mktemp("ranks") / "ranks"
    run("shard", tiny_llama, out, "--tp", "2")
    return out


def first_line(report: Report) -> str:
    lines = ["".join(cell.text for cell in each) for each in verdict(report, 300, wraps=True)]
    assert len(lines) <= 16
    return lines[0]


def finding(report: Report, cause: str) -> str:
    assert [each.cause and each.cause.name for each in report.problems] == [cause], explain(report)
    assert first_line(report) == report.problems[0].text
    return report.problems[0].text


def compared(report: Report) -> int:
    figures = report.figures(ValuesFigures)
    assert figures is not None
    assert not any(each.relative_rmse for each in figures.tensors)
    return len(figures.tensors)


def test_different_models_are_described_side_by_side(tmp_path: Path, tiny_llama: Path) -> None:
    import small_models

    saved(tmp_path, small_models.qwen2())
    assert finding(report_on(tmp_path, tiny_llama, CHECKS), "different_models") == (
        "A and B are different models: qwen2 with 3 layers, hidden size 64, 96 tokens / llama "
        "with 3 layers, hidden size 256, 512 tokens"
    )


def test_models_of_one_size_without_related_values_are_different_models(
    tmp_path: Path, tiny_llama: Path
) -> None:
    import torch

    out = renamed(tiny_llama, tmp_path / "other", str)
    made = torch.Generator().manual_seed(1)
    tensors = {
        name: (torch.randn(each.shape, generator=made) * each.float().std()).to(each.dtype)
        for name, each in load_file(out / "model.safetensors").items()
    }
    save_file(tensors, out / "model.safetensors")
    text = finding(report_on(out, tiny_llama, ("names", "values")), "different_models")
    assert text.startswith("A and B are different models: their values have no relation")


@each("prefix", ["base.", "module.model."])
def test_a_prefix_is_named_and_values_are_compared_without_it(
    tmp_path: Path, tiny_llama: Path, prefix: str
) -> None:
    out = renamed(tiny_llama, tmp_path / "renamed", lambda name: prefix + name)
    report = report_on(out, tiny_llama, CHECKS)
    assert finding(report, "renamed") == (
        f"A has 30 of 30 tensors of B under other names: each name begins with the prefix "
        f"`{prefix}`"
    )
    assert compared(report) == 30


def test_a_prefix_is_found_across_naming_conventions(tmp_path: Path, tiny_llama: Path) -> None:
    run("convert", tiny_llama, tmp_path / "tiny.gguf", "--quant", "Q8_0")
    out = renamed(tiny_llama, tmp_path / "renamed", lambda name: f"base.{name}")
    report = report_on(out, tmp_path / "tiny.gguf", ("names", "values"))
    assert "each name begins with the prefix `base.`" in finding(report, "renamed")


def test_names_of_another_convention_are_found_by_the_values(
    tmp_path: Path, tiny_llama: Path
) -> None:
    def rename(name: str) -> str:
        return name.replace("model.layers", "transformer.h").replace("self_attn", "attn")

    report = report_on(renamed(tiny_llama, tmp_path / "renamed", rename), tiny_llama, CHECKS)
    assert finding(report, "renamed") == (
        "A has 27 of 30 tensors of B under other names: `transformer.h.0.attn.k_proj.weight` is "
        "`model.layers.0.self_attn.k_proj.weight`, `transformer.h.0.attn.o_proj.weight` is "
        "`model.layers.0.self_attn.o_proj.weight` and 25 more"
    )
    assert compared(report) == 30


def test_other_names_and_other_encodings_are_told_by_the_shapes(
    tmp_path: Path, tiny_llama: Path
) -> None:
    run("convert", tiny_llama, tmp_path / "tiny.gguf", "--quant", "Q8_0")
    names = iter(range(30))
    out = renamed(tiny_llama, tmp_path / "renamed", lambda _: f"p{next(names)}")
    report = report_on(out, tmp_path / "tiny.gguf", ("names", "values"))
    assert finding(report, "renamed") == (
        "A and B have tensors of the same shapes under different names: 0 of 30 names are in both"
    )


def test_a_renamed_model_is_one_problem_without_a_reference(
    tmp_path: Path, tiny_llama: Path
) -> None:
    out = renamed(tiny_llama, tmp_path / "renamed", lambda name: f"base.{name}")
    (problem,) = report_on(out, checks=("names",)).problems
    assert problem.text == (
        "30 of 30 tensors of llama are missing, and 30 tensors have other names: "
        "`base.lm_head.weight`, `base.model.embed_tokens.weight` and 28 more; without the prefix "
        "`base.` 30 of these names are right"
    )


@each("is_reference", [False, True])
def test_one_ranks_file_is_named_with_the_whole(
    ranks: Path, tiny_llama: Path, is_reference: bool
) -> None:
    pair = (tiny_llama, ranks / "rank-0") if is_reference else (ranks / "rank-0", tiny_llama)
    report = report_on(*pair, CHECKS)
    side = "B" if is_reference else "A"
    assert finding(report, "one_rank") == (
        f"{side} is one rank's file, not a whole model: of 30 tensors it has 23 in part; the "
        f"whole checkpoint is `{ranks}`"
    )
    assert compared(report) == 7


def test_one_ranks_file_is_one_problem_without_a_reference(ranks: Path) -> None:
    (problem,) = report_on(ranks / "rank-0", checks=("names",)).problems
    assert problem.text.endswith(f"the whole checkpoint is `{ranks}`")


def test_one_ranks_file_without_its_manifest_is_told_by_its_shapes(
    tmp_path: Path, ranks: Path, tiny_llama: Path
) -> None:
    shutil.copytree(ranks / "rank-1", tmp_path / "copy")
    report = report_on(tmp_path / "copy", tiny_llama, ("names", "values"))
    assert finding(report, "one_rank") == (
        "A looks like one rank's file of a sharded checkpoint: 23 of 30 tensors have 1/2 of the "
        "rows or columns that those of B have"
    )


def test_an_adapter_of_another_rank_is_not_one_rank(tmp_path: Path) -> None:
    for rank in (4, 8):
        of_rank = {
            f"base_model.model.layers.{layer}.q_proj.lora_{part}.weight": torch.ones(shape)
            for layer in range(3)
            for part, shape in (("A", (rank, 64)), ("B", (64, rank)))
        }
        save_file(of_rank, tmp_path / f"{rank}.safetensors")
    report = report_on(tmp_path / "8.safetensors", tmp_path / "4.safetensors", ("names", "values"))
    assert not any("one rank" in problem.text for problem in report.problems)
    assert report.problems


def test_all_ranks_together_are_the_model(ranks: Path, tiny_llama: Path) -> None:
    assert not report_on(ranks, tiny_llama, ("names", "values")).problems


@each("is_reference", [False, True])
def test_a_checkpoint_without_tensors_is_one_problem(
    tmp_path: Path, tiny_llama: Path, is_reference: bool
) -> None:
    save_file({}, tmp_path / "empty.safetensors")
    pair = (tiny_llama, tmp_path / "empty.safetensors")
    report = report_on(*(pair if is_reference else pair[::-1]), ("names", "values"))
    empty, full = ("B", "A") if is_reference else ("A", "B")
    text = f"{empty} has no tensors, and {full} has 30"
    assert finding(report, "different_models") == text


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 96}


def small_llama(directory: Path, **sizes: int) -> Subject:
    directory.mkdir()
    return saved(directory, small_models.llama(**(SMALL | sizes)))


def against(subject: Subject, reference: Subject) -> Report:
    return verify_request(Request(subject=subject, reference=reference), ["values", "forward"])


def test_models_of_other_sizes_are_one_problem(tmp_path: Path) -> None:
    own = small_llama(tmp_path / "own")
    other = small_llama(tmp_path / "other", hidden_size=64, num_hidden_layers=2)
    report = against(own, other)
    (problem,) = report.problems
    assert problem.check == "values"
    assert problem.text == (
        "A and B are different models: llama with 1 layer, hidden size 32 / llama with "
        "2 layers, hidden size 64"
    )
    assert problem.cause is not None
    assert problem.cause.name == "different_models"
    assert report.results["forward"].skipped == "A and B are different models"


def test_models_of_two_families_are_different_models(tmp_path: Path) -> None:
    (directory := tmp_path / "other").mkdir()
    other = saved(directory, small_models.gpt2())
    report = against(small_llama(tmp_path / "own"), other)
    (problem,) = report.problems
    assert ": llama with 1 layer, hidden size 32 / gpt2 with " in problem.text


@each("key", ["num_hidden_layers", "vocab_size"])
def test_one_size_that_differs_may_be_a_mistake(key: str, tmp_path: Path) -> None:
    own, other = (
        small_llama(tmp_path / "own"),
        small_llama(tmp_path / "other", **{key: 3}),
    )
    reported = " ".join(each.text for each in against(own, other).problems)
    assert reported
    assert "A and B are different models: llama" not in reported


def test_the_check_that_runs_alone_tells_it(tmp_path: Path) -> None:
    own = small_llama(tmp_path / "own")
    other = small_llama(tmp_path / "other", hidden_size=64, vocab_size=97)
    report = verify_request(Request(subject=own, reference=other), ["forward"])
    assert "different models" in report.problems[0].text


def test_a_block_that_gives_nan_is_said_to_and_has_no_percentage(tmp_path: Path) -> None:
    def ruin(arrays: Any) -> None:
        arrays["model.layers.0.mlp.down_proj.weight"][5, 7] = np.nan

    (tmp_path / "own").mkdir()
    own = saved(tmp_path / "own", small_models.llama(**SMALL), change=ruin)
    request = Request(subject=own, reference=small_llama(tmp_path / "other"))
    report = verify_request(request, ["forward"])
    (problem,) = report.problems
    assert "has NaN or infinite values where the reference does not" in problem.text
    assert "%" not in problem.text


# Of a family that is not supported, GGUF's names and Hugging Face's cannot be paired.


def test_nothing_is_said_to_be_renamed_or_missing(tiny_llama: Path, tmp_path: Path) -> None:
    source, gguf = tmp_path / "in", tmp_path / "x.gguf"
    shutil.copytree(tiny_llama, source)
    convert(source, gguf)
    raw = gguf.read_bytes().replace(b"llama.", b"lyama.")
    gguf.write_bytes(raw.replace(b"\x05" + bytes(7) + b"llama", b"\x05" + bytes(7) + b"lyama"))
    document = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(document | {"model_type": "lyama"}))

    report = verify_request(Request(subject=Subject(gguf), reference=Subject(source)))
    assert report.results["values"].skipped == (
        "A has the names of GGUF and B those of Hugging Face: weightctl does not support the "
        "family, so the tensors cannot be paired"
    )
    assert report.problems == []
