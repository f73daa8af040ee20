"""Flags of added tokens: noted if llama.cpp ignores them, and kept for conversion back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers

import family_tokenizers as families
from sentencepiece_files import model_of, pieces
from vocabulary_files import ids_of
from weightctl.translate.tokenizer import from_directory, from_metadata, to_documents, to_metadata

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.translate.tokenizer import Tokenizer as Ours

TEXTS = {
    "lstrip": "Hello  <added> there", "rstrip": "Hello <added>  there",
    "single_word": "Hello<added>there",
}  # fmt: skip


def with_token(directory: Path, **flags: bool) -> Tokenizer:
    made = families.sentence_pieces("<unk>", "<s>", "</s>", first="<s>")
    made.add_tokens([AddedToken("<added>", **({"normalized": False} | flags))])
    made.save(str(directory / "tokenizer.json"))
    return made


def read(directory: Path, name: str = "") -> Ours:
    made = from_directory(str(directory), 0, "llama", name)
    assert made is not None
    return made


def added(tokenizer: Ours, model_type: str = "llama") -> dict[str, Any]:
    """Return the entries of added tokens after conversion to GGUF and back, by their texts."""
    again = from_metadata(to_metadata(tokenizer), "model.gguf")
    assert again is not None
    document = json.loads(to_documents(again, model_type, {})["tokenizer.json"])
    return {entry["content"]: entry for entry in document["added_tokens"]}


@pytest.mark.parametrize("flag", TEXTS)
def test_a_flag_that_llama_cpp_does_not_heed_is_noted_and_comes_back(
    flag: str, tmp_path: Path
) -> None:
    made = with_token(tmp_path, **{flag: True})
    tokenizer = read(tmp_path)
    (note,) = tokenizer.notes
    assert "`<added>`" in note
    assert f"`{flag}`" in note
    theirs = made.encode(TEXTS[flag], add_special_tokens=False).ids
    assert ids_of(tokenizer, [TEXTS[flag]], tmp_path / "v.gguf") != [theirs]
    assert added(tokenizer)["<added>"][flag] is True


def test_tokens_without_flags_are_not_noted(tmp_path: Path) -> None:
    made = with_token(tmp_path)
    tokenizer = read(tmp_path)
    assert tokenizer.notes == ()
    texts = [text for flag, text in TEXTS.items() if flag != "single_word"]
    expected = [made.encode(text, add_special_tokens=False).ids for text in texts]
    assert ids_of(tokenizer, texts, tmp_path / "v.gguf") == expected


def test_a_token_that_transformers_looks_for_in_normalized_text_is_noted(tmp_path: Path) -> None:
    made = with_token(tmp_path, normalized=True)
    tokenizer = read(tmp_path)
    assert [note for note in tokenizer.notes if "(`normalized`)" in note]
    theirs = made.encode("Hello<added>", add_special_tokens=False).ids
    assert ids_of(tokenizer, ["Hello<added>"], tmp_path / "v.gguf") != [theirs]
    made.normalizer = normalizers.Replace(" ", "▁")  # has no effect on the token
    made.save(str(tmp_path / "tokenizer.json"))
    assert read(tmp_path).notes == ()


def test_a_token_that_the_vocabulary_does_not_list_comes_back_outside_of_it(
    tmp_path: Path,
) -> None:
    with_token(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    # The id before `<added>` has no token, and the one after it is in the vocabulary.
    entry, vocabulary = document["added_tokens"][-1], document["model"]["vocab"]
    entry["id"] += 1
    vocabulary["<last>"] = entry["id"] + 1
    document["added_tokens"].append({**entry, "id": entry["id"] + 1, "content": "<last>"})
    path.write_text(json.dumps(document))
    again = from_metadata(to_metadata(read(tmp_path)), "model.gguf")
    assert again is not None
    back = json.loads(to_documents(again, "llama", {})["tokenizer.json"])["model"]["vocab"]
    assert "<added>" not in back
    assert back.items() >= vocabulary.items()


def test_many_tokens_are_counted(tmp_path: Path) -> None:
    made = families.sentence_pieces("<unk>", "<s>", "</s>", first="<s>")
    made.add_tokens(
        [AddedToken(f"<t{place}>", lstrip=True, normalized=False) for place in range(9)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    (note,) = read(tmp_path).notes
    assert "`<t0>`, `<t1>`, `<t2>`, `<t3>` and 5 more" in note


def test_what_llama_cpp_does_for_phi_3_goes_by_the_name_of_the_model(tmp_path: Path) -> None:
    families.phi3().save_pretrained(tmp_path)
    (note,) = read(tmp_path, "My model").notes
    assert "`<|assistant|>`, `<|end|>`, `<|user|>` (`rstrip`)" in note
    assert "`general.name`" in note
    (note,) = read(tmp_path, "Phi-3 mini").notes
    assert note.startswith(
        "llama.cpp removes white space after `</s>` because of the model's name, but "
        "transformers keeps it"
    )


def test_spaces_that_llama_cpp_drops_because_of_a_name_are_noted(tmp_path: Path) -> None:
    with_token(tmp_path)
    (note,) = read(tmp_path, "not-phi-3").notes
    assert (
        "llama.cpp removes white space after `</s>`, `<added>` because of the model's name, "
        "but transformers keeps it"
    ) in note


def test_a_flag_that_phi_3_does_not_have_stays_away(tmp_path: Path) -> None:
    with_token(tmp_path)
    assert added(read(tmp_path), "phi3")["<added>"]["rstrip"] is False


def test_flags_in_tokenizer_config_json_count_where_there_is_no_tokenizer_json(
    tmp_path: Path,
) -> None:
    count = len(pieces("bpe"))
    (tmp_path / "tokenizer.model").write_bytes(model_of("bpe identity kept"))
    token = {"content": "<added>", "lstrip": True, "special": False}
    config = {"added_tokens_decoder": {str(count): token}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = read(tmp_path)
    assert [note for note in tokenizer.notes if "`<added>` (`lstrip`)" in note]
    assert added(tokenizer)["<added>"]["lstrip"] is True
