"""Metadata that makes a correct model unusable is found, and its key is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faults import IN_DIRECTORY, IN_GGUF, edited, give_more, in_directory, in_gguf
from once import once
from verdicts import explain
from weightctl.verify import Request, Subject, verify
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import families
    from crossing_fixtures import Models
    from faults import MetadataFault
    from weightctl.verify import Report

FOUND_ALONE = [
    "types all normal", "eos dropped", "eos outside the vocabulary",
    "file type of another encoding",
]  # fmt: skip
# Tools that write GGUF do not agree which tokens are special and which are users' own.
ONLY_IN_CONFIGS = {"special tokens not special"}


def report_on(path: Path, reference: Path | None = None) -> Report:
    other = None if reference is None else Subject(reference)
    return verify(Request(subject=Subject(path), reference=other), ["metadata"])


def assert_named(report: Report, fault: MetadataFault) -> None:
    """Fail where no problem names the entry and both values."""
    found = [
        f"{problem} {problem.cause.text if problem.cause else ''}"
        for problem in report.problems
        if problem.where.endswith(fault.where)
    ]
    assert any(all(part in text for part in fault.words) for text in found), explain(report)


@pytest.fixture(scope="module")
def model(crossed: Path, tiny_llama: Path) -> Path:
    return once(crossed / "described-llama", lambda half: give_more(tiny_llama, half))


@pytest.fixture(scope="module")
def gguf_file(model: Path, healthy: Models) -> Path:
    return healthy.converted(model, "described-llama.gguf")


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_fault_of_a_gguf_file_is_named_against_a_directory(
    name: str, model: Path, gguf_file: Path, tmp_path: Path
) -> None:
    fault = IN_GGUF[name]
    wrong = in_gguf(gguf_file, tmp_path / "wrong.gguf", fault.change)
    assert_named(report_on(wrong, model), fault)


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_fault_of_a_gguf_file_is_named_against_a_gguf_file(
    name: str, gguf_file: Path, tmp_path: Path
) -> None:
    fault = IN_GGUF[name]
    wrong = in_gguf(gguf_file, tmp_path / "wrong.gguf", fault.change)
    assert_named(report_on(wrong, gguf_file), fault)


@pytest.mark.parametrize("name", IN_DIRECTORY)
def test_a_fault_of_a_directory_is_named_against_a_directory(
    name: str, model: Path, tmp_path: Path
) -> None:
    fault = IN_DIRECTORY[name]
    wrong = in_directory(model, tmp_path / "wrong", fault.change)
    assert_named(report_on(wrong, model), fault)


@pytest.mark.parametrize("name", [name for name in IN_DIRECTORY if name not in ONLY_IN_CONFIGS])
def test_a_fault_of_a_directory_is_named_against_a_gguf_file(
    name: str, model: Path, gguf_file: Path, tmp_path: Path
) -> None:
    fault = IN_DIRECTORY[name]
    wrong = in_directory(model, tmp_path / "wrong", fault.change)
    assert_named(report_on(wrong, gguf_file), fault)


@pytest.mark.parametrize("name", FOUND_ALONE)
def test_what_contradicts_itself_is_found_without_a_reference(
    name: str, gguf_file: Path, tmp_path: Path
) -> None:
    fault = IN_GGUF[name]
    wrong = in_gguf(gguf_file, tmp_path / "wrong.gguf", fault.change)
    assert_named(report_on(wrong), fault)


def test_a_model_with_all_that_real_ones_have_is_sound(model: Path, gguf_file: Path) -> None:
    pairs = [(model, None), (gguf_file, None), (model, gguf_file), (gguf_file, model)]
    assert [report_on(*pair).problems for pair in pairs] == [[], [], [], []]


def test_a_fault_is_reported_once_where_the_model_runs_too(model: Path, tmp_path: Path) -> None:
    fault = IN_DIRECTORY["rope base"]
    wrong = in_directory(model, tmp_path / "wrong", fault.change)
    request = Request(subject=Subject(wrong), reference=Subject(model), tokens=(5, 6, 7, 8))
    report = verify(request, ["metadata", "forward"])
    named = [problem.check for problem in report.problems if problem.where == fault.where]
    assert named == ["metadata"]


def test_a_list_of_ends_that_lost_one_is_named(model: Path, tmp_path: Path) -> None:
    directories = [in_directory(model, tmp_path / name, _with_ends) for name in ("a", "b")]
    with edited(directories[0], "generation_config.json") as generation:
        generation["eos_token_id"] = 1
    (problem,) = report_on(*directories).problems
    assert problem.where == "eos_token_id"
    assert problem.text.startswith("generation ends with 1 `</s>` here and with 1 `</s>` or 305 `")


def _with_ends(directory: Path) -> None:
    with edited(directory, "generation_config.json") as generation:
        generation["eos_token_id"] = [1, 305]


def test_scores_that_are_exchanged_are_named(
    family: Callable[[str], families.Made], gguf: Callable[..., Path], tmp_path: Path
) -> None:
    def change(metadata: dict[str, MetadataValue]) -> None:
        scores = [*metadata["tokenizer.ggml.scores"].content]
        scores[300], scores[320] = scores[320], scores[300]
        metadata["tokenizer.ggml.scores"] = MetadataValue("array[f32]", scores)

    wrong = in_gguf(gguf("mistral"), tmp_path / "wrong.gguf", change)
    (problem,) = report_on(wrong, family("mistral").path).problems
    assert problem.where == "tokenizer.ggml.scores"
    assert "the score of token 300 `" in problem.text


def test_a_sliding_window_that_is_another_is_named(
    family: Callable[[str], families.Made], tmp_path: Path
) -> None:
    right = family("mistral").path

    def change(directory: Path) -> None:
        with edited(directory, "config.json") as config:
            config["sliding_window"] = 64

    wrong = in_directory(right, tmp_path / "wrong", change)
    (problem,) = report_on(wrong, right).problems
    assert problem.where == "sliding_window"
    assert problem.cause is not None
    assert "is 64 here and 256 in the reference" in problem.cause.text


def test_a_context_shorter_than_the_one_that_is_stretched_is_named(
    family: Callable[[str], families.Made], tmp_path: Path
) -> None:
    def change(directory: Path) -> None:
        with edited(directory, "config.json") as config:
            config["max_position_embeddings"] = 32

    wrong = in_directory(family("llama").path, tmp_path / "wrong", change)
    (problem,) = report_on(wrong).problems
    assert problem.where == "max_position_embeddings"
    assert problem.text == "is 32, but its RoPE scaling extends a context of 64"
