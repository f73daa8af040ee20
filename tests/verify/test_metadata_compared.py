"""Which metadata of two checkpoints is compared, and what is not a difference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import families
from each import each, usual
from faults import IN_DIRECTORY, IN_GGUF, edited, exchange, give_more, in_directory, in_gguf
from once import once
from verdicts import explain
from weightctl import convert
from weightctl.verify import Request, Subject, verify_request
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crossing_fixtures import Models
    from faults import MetadataFault
    from weightctl.verify import Report


RECIPES = ("Q2_K", "Q3_K_L", "Q4_K_M", "Q5_K_S", "IQ4_NL", "TQ1_0")


def report_on(path: Path, reference: Path | None = None) -> Report:
    other = None if reference is None else Subject(reference)
    return verify_request(Request(subject=Subject(path), reference=other), ["metadata"])


def changed(source: Path, out: Path, name: str, change: Callable[[Any], object]) -> Path:
    def apply(directory: Path) -> None:
        with edited(directory, name) as content:
            change(content)

    return in_directory(source, out, apply)


@pytest.mark.parametrize("name", usual(["llama", "gemma3", "gpt2", "bert"], families.FAMILIES))
def test_a_family_there_and_back_has_the_same_metadata(
    name: str,
    family: Callable[[str], families.Made],
    gguf: Callable[..., Path],
    back: Callable[..., Path],
) -> None:
    forms = (family(name).path, gguf(name), back(name))
    for path in forms:
        for reference in (None, *forms):
            report = report_on(path, reference)
            assert not report.problems, explain(report)


@each("recipe", RECIPES)
def test_the_file_type_of_a_recipe_is_that_of_its_tensors(recipe: str, healthy: Models) -> None:
    quantized = healthy.converted(
        healthy("tiny-llama"), f"tiny-llama-typed-{recipe}.gguf", "--quant", recipe
    )
    report = report_on(quantized, healthy("tiny-llama"))
    assert not report.problems, explain(report)
    assert not report.notes


def test_a_file_type_of_a_few_tensors_alone_is_a_note(healthy: Models, tmp_path: Path) -> None:
    options = ("--quant", "Q4_0", "--tensor-type", "ffn_=q5_1", "--tensor-type", "embd=q5_1")
    mixed = healthy.converted(healthy("tiny-llama"), "tiny-llama-mixed.gguf", *options)
    right = in_gguf(mixed, tmp_path / "typed.gguf", _file_type(2))
    (note,) = report_on(right).notes
    assert note.startswith("`general.file_type` is 2, Q4_0, but ")
    assert note.endswith("of the matrices' values are Q5_1")
    (problem,) = report_on(right, healthy("tiny-llama")).problems
    assert problem.where == "general.file_type"


def test_another_file_type_than_the_references_of_the_same_encodings_is_named(
    healthy: Models, tmp_path: Path
) -> None:
    right = healthy.gguf("tiny-llama", "Q4_K")
    other = in_gguf(right, tmp_path / "other.gguf", _file_type(15))
    (problem,) = report_on(other, right).problems
    assert problem.text.startswith("is 15, Q4_K_M here and 14, Q4_K_S in the reference")


def _file_type(number: int) -> Callable[[dict[str, MetadataValue]], None]:
    def change(metadata: dict[str, MetadataValue]) -> None:
        metadata["general.file_type"] = MetadataValue("u32", number)

    return change


def test_names_of_one_pre_tokenizer_are_not_a_difference(healthy: Models, tmp_path: Path) -> None:
    right = healthy.gguf("tiny-llama")

    def rename(metadata: dict[str, MetadataValue]) -> None:
        metadata["tokenizer.ggml.pre"] = MetadataValue("string", "phi-2")

    assert not report_on(in_gguf(right, tmp_path / "renamed.gguf", rename), right).problems


def test_a_default_that_is_left_out_is_not_a_difference(
    gguf: Callable[..., Path], family: Callable[[str], families.Made], tmp_path: Path
) -> None:
    def leave_out(metadata: dict[str, MetadataValue]) -> None:
        for key in ("bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token"):
            metadata.pop(f"tokenizer.ggml.{key}", None)

    short = in_gguf(gguf("mistral"), tmp_path / "short.gguf", leave_out)
    for reference in (gguf("mistral"), family("mistral").path):
        report = report_on(short, reference)
        assert not report.problems, explain(report)


def test_scores_of_the_same_order_are_not_a_difference(
    gguf: Callable[..., Path], tmp_path: Path
) -> None:
    def double(metadata: dict[str, MetadataValue]) -> None:
        scores = metadata["tokenizer.ggml.scores"].content
        metadata["tokenizer.ggml.scores"] = MetadataValue(
            "array[f32]", [2 * each for each in scores]
        )

    doubled = in_gguf(gguf("mistral"), tmp_path / "doubled.gguf", double)
    assert not report_on(doubled, gguf("mistral")).problems


@each(
    "name, change, where, message",
    [
        ("config.json", lambda config: config.update(max_position_embeddings=256),
         "max_position_embeddings", "is 256 here and 512 in the reference"),
        ("tokenizer.json", lambda document: exchange(document["model"]["merges"], 3, 4),
         "tokenizer.json", "merge 3 is"),
    ],
)  # fmt: skip
def test_models_of_an_unknown_family_are_compared_too(
    name: str, change: Callable[[Any], object], where: str, message: str,
    tiny_llama: Path, tmp_path: Path,
) -> None:  # fmt: skip
    right = changed(
        tiny_llama, tmp_path / "a", "config.json", lambda config: config.update(model_type="new")
    )
    (problem,) = report_on(changed(right, tmp_path / "b", name, change), right).problems
    assert problem.where.endswith(where)
    assert message in problem.text


def test_numbers_of_an_unknown_architecture_are_compared_too(
    healthy: Models, tmp_path: Path
) -> None:
    def make(context: int) -> Callable[[dict[str, MetadataValue]], None]:
        def change(metadata: dict[str, MetadataValue]) -> None:
            metadata["general.architecture"] = MetadataValue("string", "new")
            metadata["new.context_length"] = MetadataValue("u32", context)

        return change

    source = healthy.gguf("tiny-llama")
    paths = [in_gguf(source, tmp_path / f"{n}.gguf", make(n)) for n in (256, 512)]
    (problem,) = report_on(*paths).problems
    assert (problem.where, problem.text) == (
        "new.context_length",
        "is 256 here and 512 in the reference",
    )


def test_a_tokenizer_without_a_form_in_gguf_is_compared_as_it_stands(
    tiny_llama: Path, tmp_path: Path
) -> None:
    def make(name: str, words: list[str]) -> Path:
        def write(directory: Path) -> None:
            vocabulary = {word: number for number, word in enumerate(words)}
            model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}
            (directory / "tokenizer.json").write_text(json.dumps({"model": model}))

        return in_directory(tiny_llama, tmp_path / name, write)

    report = report_on(make("a", ["a", "c", "b"]), make("b", ["a", "b", "c"]))
    (problem,) = report.problems
    assert problem.text.startswith("2 tokens are swapped: token 1 `c` is `b` in the reference")


def test_rules_that_make_other_text_of_tokens_are_a_problem(
    tiny_llama: Path, tmp_path: Path
) -> None:
    wrong = changed(
        tiny_llama, tmp_path / "a", "tokenizer.json", lambda each: each.update(decoder=None)
    )
    (problem,) = report_on(wrong, tiny_llama).problems
    assert problem.where.endswith("tokenizer.json")
    assert problem.text == (
        "tokenizer.json differs from the reference in `decoder`, and a test text gives "
        "different tokens"
    )


def test_flags_of_added_tokens_that_change_no_text_are_a_note(
    tiny_llama: Path, tmp_path: Path
) -> None:
    other = changed(
        tiny_llama,
        tmp_path / "a",
        "tokenizer.json",
        lambda document: document["added_tokens"][1].update(rstrip=True),
    )
    report = report_on(other, tiny_llama)
    assert not report.problems
    (note,) = report.notes
    assert note.startswith("tokenizer.json differs from the reference in flags of added tokens 1")
    assert note.endswith("a test text gives the same tokens")


def test_a_tokenizer_that_is_missing_is_named(healthy: Models, tmp_path: Path) -> None:
    def drop(metadata: dict[str, MetadataValue]) -> None:
        for key in [key for key in metadata if key.startswith("tokenizer.")]:
            del metadata[key]

    bare = in_gguf(healthy.gguf("tiny-llama"), tmp_path / "bare.gguf", drop)
    (problem,) = report_on(bare, healthy("tiny-llama")).problems
    assert problem.text == "there is no tokenizer, and the reference has one"


def test_a_directory_may_be_without_the_tokenizer(tiny_llama: Path, tmp_path: Path) -> None:
    def drop(directory: Path) -> None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (directory / name).unlink()

    report = report_on(in_directory(tiny_llama, tmp_path / "bare", drop), tiny_llama)
    assert not report.problems
    assert report.notes == [
        f"{tmp_path / 'bare'}: there is no tokenizer, and the reference has one"
    ]


def test_metadata_of_different_models_are_not_compared(healthy: Models) -> None:
    report = report_on(healthy("tiny-llama"), healthy("gpt2"))
    assert not report.problems
    assert report.notes[0] == "metadata was not compared: A and B are different models"


def test_a_file_without_a_config_is_skipped_and_says_so(tiny_llama: Path, tmp_path: Path) -> None:
    alone = tmp_path / "model.safetensors"
    alone.write_bytes((tiny_llama / "model.safetensors").read_bytes())
    result = report_on(alone).results["metadata"]
    assert result.skipped == "there is no config.json and no GGUF metadata"


# Metadata that makes a correct model unusable is found, and its key is named.


FOUND_ALONE = [
    "types all normal", "eos dropped", "eos outside the vocabulary",
    "file type of another encoding",
]  # fmt: skip
# Tools that write GGUF do not agree which tokens are special and which are users' own.
ONLY_IN_CONFIGS = {"special tokens not special"}


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


@each("name", IN_GGUF)
def test_a_fault_of_a_gguf_file_is_named_against_either_form(
    name: str, model: Path, gguf_file: Path, tmp_path: Path
) -> None:
    fault = IN_GGUF[name]
    wrong = in_gguf(gguf_file, tmp_path / "wrong.gguf", fault.change)
    for reference in (model, gguf_file):
        assert_named(report_on(wrong, reference), fault)


@each("name", IN_DIRECTORY)
def test_a_fault_of_a_directory_is_named_against_either_form(
    name: str, model: Path, gguf_file: Path, tmp_path: Path
) -> None:
    fault = IN_DIRECTORY[name]
    wrong = in_directory(model, tmp_path / "wrong", fault.change)
    for reference in (model,) if name in ONLY_IN_CONFIGS else (model, gguf_file):
        assert_named(report_on(wrong, reference), fault)


@each("name", FOUND_ALONE)
def test_what_contradicts_itself_is_found_without_a_reference(
    name: str, gguf_file: Path, tmp_path: Path
) -> None:
    fault = IN_GGUF[name]
    wrong = in_gguf(gguf_file, tmp_path / "wrong.gguf", fault.change)
    assert_named(report_on(wrong), fault)


def test_a_model_with_all_that_real_ones_have_is_sound(model: Path, gguf_file: Path) -> None:
    pairs = [(model, None), (gguf_file, None), (model, gguf_file), (gguf_file, model)]
    assert [report_on(*pair).problems for pair in pairs] == [[], [], [], []]


def _reverse_tokens(directory: Path, count: int | None = None) -> None:
    """Give the tokens of the last merges, or of all, the ids of one another in reverse."""
    with edited(directory, "tokenizer.json") as content:
        words, added = (
            content["model"]["vocab"],
            {each["content"] for each in content["added_tokens"]},
        )
        merges = content["model"]["merges"]
        texts = ["".join(each) if isinstance(each, list) else each.replace(" ", "", 1)
                 for each in merges]  # fmt: skip
        some = [text for text in texts if text not in added][-(count or len(texts)) :]
        words.update(zip(some, [words[text] for text in reversed(some)], strict=True))


def test_tokens_in_another_order_than_their_merges_are_found_alone(
    model: Path, tmp_path: Path
) -> None:
    """The vocabulary of a decoder is numbered as it is merged."""
    wrong = in_directory(model, tmp_path / "wrong", _reverse_tokens)
    convert(wrong, tmp_path / "wrong.gguf")
    for path in (wrong, tmp_path / "wrong.gguf"):
        (problem,) = report_on(path).problems
        assert "merged tokens are lower than that of the merge before" in problem.text
        assert problem.where.endswith(("tokens", "tokenizer.json"))
    extended = in_directory(model, tmp_path / "few", lambda path: _reverse_tokens(path, 2))
    report = report_on(extended)
    assert not report.problems
    assert any("merged tokens are lower" in note for note in report.notes)


def test_a_fault_is_reported_once_where_the_model_runs_too(model: Path, tmp_path: Path) -> None:
    fault = IN_DIRECTORY["rope base"]
    wrong = in_directory(model, tmp_path / "wrong", fault.change)
    request = Request(subject=Subject(wrong), reference=Subject(model), tokens=(5, 6, 7, 8))
    report = verify_request(request, ["metadata", "forward"])
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
