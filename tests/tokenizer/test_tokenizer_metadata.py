"""The keys of GGUF's metadata that define a tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import Tokenizer, from_metadata, to_documents, to_metadata
from weightctl.weights.metadata import MetadataValue, is_type

FULL = Tokenizer(
    model="t5",
    pre="default",
    tokens=("a", "b", "<s>"),
    types=(1, 1, 3),
    scores=(0.0, -1.0, 0.0),
    merges=("a b",),
    special={"bos": 2, "eot": 1},
    ends=(2, 1),
    flags={"add_bos_token": True, "add_space_prefix": False},
    chat_templates={"": "one", "rag": "two"},
    token_type_count=2,
    charsmap=b"\x00\xff",
    remainder="{}",
)
LEAST = {
    "tokenizer.ggml.model": MetadataValue("string", "gpt2"),
    "tokenizer.ggml.tokens": MetadataValue("array[string]", ["a", "b"]),
}


def test_what_is_written_is_read_again() -> None:
    metadata = to_metadata(FULL)
    assert from_metadata(metadata, "model.gguf") == FULL
    assert all(is_type(value.type) for value in metadata.values())
    assert metadata["tokenizer.chat_templates"].content == ["rag"]


def test_a_file_without_a_tokenizer_has_none() -> None:
    assert from_metadata({"general.name": MetadataValue("string", "x")}, "model.gguf") is None
    assert (
        from_metadata({"tokenizer.ggml.model": MetadataValue("string", "none")}, "model.gguf")
        is None
    )


@pytest.mark.parametrize("none", [0xFFFFFFFF, -1])
def test_an_id_that_means_none_is_none(none: int) -> None:
    metadata = {**LEAST, "tokenizer.ggml.bos_token_id": MetadataValue("i64", none)}
    tokenizer = from_metadata(metadata, "model.gguf")
    assert tokenizer is not None
    assert tokenizer.special == {}


@each(
    ("key", "value"),
    [
        ("tokenizer.ggml.bos_token_id", MetadataValue("u32", 2)),
        ("tokenizer.ggml.bos_token_id", MetadataValue("string", "0")),
        ("tokenizer.ggml.eos_token_ids", MetadataValue("array[string]", ["0"])),
        ("tokenizer.ggml.eos_token_ids", MetadataValue("array[array]", [[]])),
        ("tokenizer.ggml.eos_token_ids", MetadataValue("u32", 0)),
        ("tokenizer.ggml.tokens", MetadataValue("string", "ab")),
        ("tokenizer.ggml.tokens", MetadataValue("array[string]", [])),
        ("tokenizer.ggml.tokens", MetadataValue("array[u8]", [1, 2])),
        ("tokenizer.ggml.token_type", MetadataValue("array[i32]", [1])),
        ("tokenizer.ggml.token_type", MetadataValue("array[i32]", [1, 9])),
        ("tokenizer.ggml.token_type", MetadataValue("array[string]", ["1", "1"])),
        ("tokenizer.ggml.scores", MetadataValue("array[f32]", [1.0])),
        ("tokenizer.ggml.scores", MetadataValue("array[string]", ["a", "b"])),
        ("tokenizer.ggml.merges", MetadataValue("array[u8]", [1])),
        ("tokenizer.ggml.merges", MetadataValue("bool", True)),
        ("tokenizer.ggml.model", MetadataValue("u8", 1)),
        ("tokenizer.ggml.pre", MetadataValue("u8", 1)),
        ("tokenizer.ggml.precompiled_charsmap", MetadataValue("array[string]", ["a"])),
    ],
)
def test_values_that_contradict_each_other_name_the_file(key: str, value: MetadataValue) -> None:
    with pytest.raises(TokenizerError, match=r"^model\.gguf: "):
        from_metadata({**LEAST, key: value}, "model.gguf")


def test_a_model_that_tokenizer_json_has_no_form_for_is_named() -> None:
    tokenizer = Tokenizer(model="plamo3", tokens=("a",), types=(1,))
    with pytest.raises(TokenizerError, match="`plamo3`"):
        to_documents(tokenizer, "plamo3", {})


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from([*to_metadata(FULL)]),
        st.builds(lambda content: MetadataValue("any", content), ANY),
    )
)
def test_no_metadata_is_met_with_any_other_error(metadata: dict[str, Any]) -> None:
    try:
        tokenizer = from_metadata({**LEAST, **metadata}, "model.gguf")
        assert tokenizer is not None
        to_documents(tokenizer, "llama", {})
    except TokenizerError as error:
        assert error.hint  # noqa: PT017
