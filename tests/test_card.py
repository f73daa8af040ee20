"""A model card becomes the same `general.*` keys as with llama.cpp's script, and comes back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.metadata import Metadata
from gguf.utility import size_label as expected_size_label
from hypothesis import given
from hypothesis import strategies as st

from each import each
from weightctl.translate.card import from_directory, size_label, to_readme
from weightctl.translate.card.readme import parse_front_matter
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from pathlib import Path

CARD = """---
license: other
license_name: tulu
license_link: https://example.org/LICENSE
language:
- en
- no
library_name: transformers
tags: [chat, "code"]
pipeline_tag: text-generation
base_model:
- HuggingFaceTB/SmolLM2-135M
- https://huggingface.co/mistralai/Mistral-7B-v0.1
- https://example.org/some/model
- name: Else
  organization: Nobody
datasets: HuggingFaceTB/smol-smoltalk
version: "1.10"
quantized_by: someone
model-index:
- name: x
  results: [{task: {type: y}}]
---

# A model
"""
NAMES = [
    "SmolLM2-135M-Instruct",
    "meta-llama/Llama-3.2-1B",
    "Mixtral-8x7B-Instruct-v0.1",
    "bigscience/bloom-7b1-petals",
    "Qwen3-30B-A3B-Instruct-2507",
    "Phi-3-mini-4k-instruct",
    "gemma-2-9b-it",
    "TinyLlama-1_1b-Chat-v1.0-Q4_K",
    "gpt2-xl",
    "Llama-2-70b-chat-hf",
    "yarn-mistral-7b-128k",
    "all-MiniLM-L6-v2",
    "a model of mine",
    "model",
    "x--y-bf16",
    "./model-7B",
    "org/name/more-7B",
]


def made_by_gguf(directory: Path, scratch: Path, parameters: int = 0) -> dict[str, Any]:
    """Return the keys that llama.cpp's script creates for a directory."""
    writer = GGUFWriter(scratch, "llama")
    Metadata.load(None, directory, None, parameters).set_gguf_meta_model(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    fields = GGUFReader(scratch).fields
    return {
        key: field.contents()
        for key, field in fields.items()
        if key.startswith("general.") and key != "general.architecture"
    }


def plain(metadata: dict[str, MetadataValue]) -> dict[str, Any]:
    return {key: value.content for key, value in metadata.items()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = tmp_path / "Some-Model-1.5B-chat-v2"
    made.mkdir()
    return made


def test_a_card_is_read_as_llama_cpps_script_reads_it(model: Path, tmp_path: Path) -> None:
    (model / "README.md").write_text(CARD)
    expected = made_by_gguf(model, tmp_path / "expected.gguf")
    found = plain(from_directory(str(model)))
    assert found.pop("general.quantized_by") == "someone"
    assert found == expected
    assert found["general.base_model.count"] == 4
    assert found["general.languages"] == ["en", "no"]
    assert found["general.version"] == "1.10"


@each("parameters", [0, 7_000_000_000])
@each("name", NAMES)
def test_a_name_says_what_it_says_to_llama_cpps_script(
    model: Path, tmp_path: Path, name: str, parameters: int
) -> None:
    (model / "config.json").write_text(json.dumps({"_name_or_path": name}))
    expected = made_by_gguf(model, tmp_path / "expected.gguf", parameters)
    found = plain(from_directory(str(model), parameters))
    if "general.size_label" not in expected:
        found.pop("general.size_label", None)
    assert found == expected


def test_a_path_is_not_a_name(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({"_name_or_path": "/home/me/models"}))
    assert plain(from_directory(str(model)))["general.name"] == "Some Model 1.5B Chat v2"


def test_a_model_in_the_cache_of_the_hub_is_not_named_for_its_commit(tmp_path: Path) -> None:
    model = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "c1899de289a04d12100d"
    model.mkdir(parents=True)
    found = plain(from_directory(str(model)))
    assert found["general.name"] == "Qwen3 0.6B"
    assert found["general.organization"] == "Qwen"


@pytest.mark.parametrize("count", [999, 1000, 1001, 134_515_008, 1_543_714_304, 999_900_000, 7e12])
def test_a_size_is_told_as_gguf_tells_it(count: float) -> None:
    assert size_label(int(count)) == expected_size_label(int(count), 0, 0, 0)


def test_a_size_of_experts_is_that_of_one_of_them() -> None:
    shared, each = 1_600_000_000, 5_600_000_000
    expected = expected_size_label(0, shared, each, 8)
    assert size_label(shared + 8 * each, 8, 8 * each) == expected == "8x7.2B"


def test_where_nothing_says_how_large_a_model_is_its_numbers_do(tmp_path: Path) -> None:
    found = plain(from_directory(str(tmp_path), 134_515_008))
    assert found["general.size_label"] == "135M"


def test_a_card_comes_back_as_it_went(model: Path) -> None:
    (model / "README.md").write_text(CARD)
    metadata = from_directory(str(model))
    readme = to_readme(metadata)
    assert readme is not None
    assert readme.endswith(b"\n# Some Model 1.5B Chat v2\n")
    assert b"- HuggingFaceTB/SmolLM2-135M\n" in readme
    (model / "README.md").write_bytes(readme)
    assert from_directory(str(model)) == metadata


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
WORDS = TEXT.filter(lambda text: text not in {"~", "null", "Null", "NULL"} and text.strip())


@given(WORDS, WORDS, st.lists(WORDS, min_size=1, unique=True))
def test_whatever_a_fact_says_its_front_matter_says(name: str, terms: str, tags: list[str]) -> None:
    readme = to_readme(
        {
            "general.name": MetadataValue("string", name),
            "general.license": MetadataValue("string", terms),
            "general.tags": MetadataValue("array[string]", tags),
        }
    )
    assert readme is not None
    found = parse_front_matter(readme.decode(), ["name", "license", "tags"])
    assert found == {"name": name, "license": terms, "tags": tags}


def test_metadata_without_facts_make_no_readme() -> None:
    assert to_readme({"llama.block_count": MetadataValue("u32", 2)}) is None


def test_strange_facts_are_left_out() -> None:
    strange = {
        "general.name": MetadataValue("u32", 7),
        "general.tags": MetadataValue("array[u8]", b"\1\2"),
        "general.base_model.count": MetadataValue("u64", 1 << 60),
        "general.dataset.count": MetadataValue("string", "many"),
        "general.license": MetadataValue("string", "mit\udcff"),
    }
    readme = to_readme(strange)
    assert readme is not None
    assert parse_front_matter(readme.decode(), ["license"]) == {"license": "mit\ufffd"}


BOMB = "\n".join(
    ["tags: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"t{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 40)]
)


@pytest.mark.parametrize(
    ("front", "reported"),
    [
        ("license: [mit", "has front matter that is not valid YAML"),
        ("license: " + "[" * 15_000, "nested too deeply"),
        ("license: " + "[ {" * 5_000, "nested too deeply"),
        ("license: \x01", "has front matter that is not valid YAML"),
        ("license: " + "x" * 200_000, "more than 20000"),
        ("- license", "not a mapping"),
        ('license: "\\UFFFFFFFF"', "has front matter with an invalid character"),
        ("license: &a [*a, mit", "has front matter that is not valid YAML"),
        ("{[1]: 2}", "has front matter that is not valid YAML"),
    ],
)
def test_front_matter_that_cannot_be_read_is_reported_and_the_rest_is_read(
    model: Path, front: str, reported: str
) -> None:
    (model / "README.md").write_text(f"---\n{front}\n---\n")
    notes: list[str] = []
    found = from_directory(str(model), tell=notes.append)
    assert found["general.size_label"] == MetadataValue("string", "1.5B")
    assert "general.license" not in found
    assert len(notes) == 1
    assert reported in notes[0]


@pytest.mark.parametrize(
    "front",
    [
        BOMB.replace("t", "tags_"),
        BOMB + "\nbase_model: *a0",
        "tags: &a [*a, x]",
        "license: !!python/object/apply:os.system [exit]",
        "license: {a: b}\ntags: {c: d}\nbase_model: [[1], {name: [2]}]",
        "base_model: null\nlicense: ~\ntags:\n",
    ],
)
def test_front_matter_of_any_shape_does_no_harm(model: Path, front: str) -> None:
    (model / "README.md").write_text(f"---\n{front}\n---\n")
    assert len(from_directory(str(model))) < 40


def test_a_readme_without_an_end_is_not_all_front_matter(model: Path) -> None:
    (model / "README.md").write_text("---\nlicense: mit\n" + "x\n" * 3_000_000)
    notes: list[str] = []
    from_directory(str(model), tell=notes.append)
    assert "without an end" in notes[0]


def test_keys_that_nobody_asked_for_are_not_parsed() -> None:
    text = "---\nmodel-index: [[[{\nlicense: mit\nwidget: '\ntags:\n- a\n---\n"
    assert parse_front_matter(text, ["license", "tags"]) == {"license": "mit", "tags": ["a"]}


def test_halves_of_characters_become_question_marks(model: Path) -> None:
    card = r'license: "\ud800"', r'name: "x\udc80"', r'base_model: {name: "\udfff"}'
    (model / "README.md").write_text("\n".join(["---", *card, "---", ""]))
    found = from_directory(str(model))
    says = [found[f"general.{key}"].content for key in ("license", "name", "base_model.0.name")]
    assert says == ["?", "x?", "?"]
