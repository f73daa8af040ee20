"""Conversion of byte-level BPE between tokenizer.json and GGUF's metadata."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Reference

from each import each
from lazy import transformers
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import (
    Tokenizer,
    from_directory,
    from_metadata,
    regexes,
    to_documents,
    to_metadata,
)
from weightctl.translate.tokenizer.pre_names import PRES
from weightctl.translate.tokenizer.rules import parse, to_normalizer, to_pre_tokenizer
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXT = "Hello  wörld 123 <tool>x</tool>\n\n  'tis 你好 🦙 </s> e\u0301"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def letters() -> dict[str, int]:
    return {text: token for token, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def made(**parts: Any) -> Reference:
    """Return a small tokenizer: bytes, a few merges, special and added tokens."""
    vocabulary = letters()
    merges = [("l", "l"), ("h", "e"), ("he", "ll"), ("Ġ", "w"), ("1", "2")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    reference = Reference(models.BPE(vocab=vocabulary, merges=merges, **parts))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True)])
    reference.add_tokens(["<tool>", AddedToken("</tool>", rstrip=True)])
    return reference


def saved(reference: Reference, directory: Path, **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    reference.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text('{"model_type": "llama"}')
    return directory


def read(directory: Path, vocabulary: int = 0) -> Tokenizer:
    tokenizer = from_directory(str(directory), vocabulary, "llama")
    assert tokenizer is not None
    return tokenizer


def through_gguf(tokenizer: Tokenizer) -> Tokenizer:
    again = from_metadata(to_metadata(tokenizer), "model.gguf")
    assert again is not None
    return again


def written(tokenizer: Tokenizer, directory: Path) -> Path:
    directory.mkdir()
    for name, content in to_documents(tokenizer, "llama", {}).items():
        (directory / name).write_bytes(content)
    (directory / "config.json").write_text('{"model_type": "llama"}')
    return directory


def edited(directory: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    path = directory / "tokenizer.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    return directory


def test_a_tokenizer_that_went_through_gguf_loads_and_works_as_before(tmp_path: Path) -> None:
    reference = made()
    reference.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A <s> $B:1 </s>:1",
        special_tokens=[("<s>", 261), ("</s>", 262)],
    )
    source = saved(reference, tmp_path / "a", bos_token="<s>", eos_token="</s>")
    target = written(through_gguf(read(source)), tmp_path / "b")
    before, after = (transformers.AutoTokenizer.from_pretrained(each) for each in (source, target))
    assert after.encode(TEXT) == before.encode(TEXT)
    assert after.encode(TEXT, "pair") == before.encode(TEXT, "pair")
    assert after.decode(after.encode(TEXT)) == before.decode(before.encode(TEXT))
    assert after.special_tokens_map == before.special_tokens_map
    assert after.get_vocab() == before.get_vocab()
    assert after.vocab_size == before.vocab_size
    flags = [str(each.added_tokens_decoder) for each in (before, after)]
    assert flags[0] == flags[1]


def test_everything_but_the_order_of_tokenizer_json_is_as_it_was(tmp_path: Path) -> None:
    reference = made()
    reference.enable_truncation(16)
    source = saved(reference, tmp_path / "a", bos_token="<s>", padding_side="left")
    target = written(through_gguf(read(source)), tmp_path / "b")
    before = Reference.from_file(str(source / "tokenizer.json"))
    after = Reference.from_file(str(target / "tokenizer.json"))
    assert json.loads(after.to_str()) == json.loads(before.to_str())
    config = json.loads((target / "tokenizer_config.json").read_text())
    assert config["padding_side"] == "left"


def test_what_other_tools_changed_in_a_gguf_counts_more_than_what_was_remembered(
    tmp_path: Path,
) -> None:
    source = saved(made(), tmp_path / "a", bos_token="<s>", eos_token="</s>")
    metadata = to_metadata(read(source))
    metadata["tokenizer.ggml.eos_token_id"] = metadata["tokenizer.ggml.eos_token_id"]._replace(
        content=263
    )
    tokenizer = from_metadata(metadata, "model.gguf")
    assert tokenizer is not None
    config = json.loads(to_documents(tokenizer, "llama", {})["tokenizer_config.json"])
    assert config["eos_token"] == "<mask>"


@each("name", PRES)
def test_every_name_of_a_rule_leads_to_the_rule_and_back(name: str) -> None:
    rule = PRES[name].rule
    document = {
        "normalizer": to_normalizer(rule),
        "pre_tokenizer": to_pre_tokenizer(rule),
    }
    assert parse(document, "tokenizer.json") == rule


@each("name", PRES)
def test_the_library_takes_every_rule(name: str) -> None:
    reference = json.loads(made().to_str())
    reference["pre_tokenizer"] = to_pre_tokenizer(PRES[name].rule)
    reference["added_tokens"] = []
    loaded = Reference.from_str(json.dumps(reference))
    assert loaded.decode(loaded.encode(TEXT).ids) == TEXT


def test_a_rule_is_recognized_however_it_is_spelled(tmp_path: Path) -> None:
    spelling = (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    )
    split = {"type": "Split", "pattern": {"Regex": spelling}, "behavior": "Removed", "invert": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}

    def edit(document: dict[str, Any]) -> None:
        document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
        document["model"]["ignore_merges"] = True

    assert read(edited(saved(made(), tmp_path), edit)).pre == "llama-bpe"


def test_a_rule_that_nobody_has_a_name_for_is_shown(tmp_path: Path) -> None:
    reference = made()
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("x", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    with pytest.raises(TokenizerError, match=r'"pattern": \{"String": "x"\}.*\n.*--names keep'):
        read(saved(reference, tmp_path))


def test_a_normalizer_that_gguf_cannot_say_is_shown(tmp_path: Path) -> None:
    reference = made()
    reference.normalizer = normalizers.Lowercase()
    with pytest.raises(TokenizerError, match=r'normalizer \{"type": "Lowercase"\}'):
        read(saved(reference, tmp_path))


def test_old_files_that_leave_out_the_type_of_model_are_read(tmp_path: Path) -> None:
    source = edited(saved(made(), tmp_path), lambda document: document["model"].pop("type"))
    documents = to_documents(read(source), "gpt2", {})
    assert json.loads(documents["tokenizer.json"])["model"]["type"] == "BPE"


def test_merges_are_read_in_both_forms(tmp_path: Path) -> None:
    def join(document: dict[str, Any]) -> None:
        document["model"]["merges"] = [" ".join(merge) for merge in document["model"]["merges"]]

    pairs = read(saved(made(), tmp_path))
    assert read(edited(tmp_path, join)).merges == pairs.merges
    assert pairs.merges is not None
    assert pairs.merges[2] == "he ll"


def test_vocab_json_and_merges_txt_do_without_tokenizer_json(tmp_path: Path) -> None:
    reference = made()
    reference.model.save(str(tmp_path))
    (tmp_path / "added_tokens.json").write_text('{"<tool>": 261}')
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "ll"}')
    tokenizer = read(tmp_path)
    assert (tokenizer.pre, tokenizer.tokens[261]) == ("gpt-2", "<tool>")
    assert tokenizer.tokens[tokenizer.special["eos"]] == "ll"
    assert len(tokenizer.merges or ()) == 5


def test_rows_of_the_embedding_without_a_token_are_padding_and_go_again(tmp_path: Path) -> None:
    tokenizer = read(saved(made(), tmp_path), vocabulary=272)
    assert (tokenizer.tokens[-1], tokenizer.types[-1]) == ("[PAD271]", 5)
    document = json.loads(to_documents(tokenizer, "llama", {})["tokenizer.json"])
    assert "[PAD271]" not in document["model"]["vocab"]


def test_a_tokenizer_of_more_tokens_than_rows_is_of_another_model(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"266 tokens.*100 rows"):
        read(saved(made(), tmp_path), vocabulary=100)


@pytest.mark.parametrize(
    ("single", "flags"),
    [
        ("$A", (False, False)), ("<s> $A", (True, False)), ("$A </s>", (False, True)),
        ("<s> $A </s>", (True, True)),
    ],
)  # fmt: skip
def test_what_surrounds_a_text_is_a_flag(
    single: str, flags: tuple[bool, bool], tmp_path: Path
) -> None:
    reference = made()
    reference.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[("<s>", 261), ("</s>", 262)]
    )
    tokenizer = read(saved(reference, tmp_path, bos_token="<s>", eos_token="</s>"))
    assert (tokenizer.flags["add_bos_token"], tokenizer.flags["add_eos_token"]) == flags


@pytest.mark.parametrize("adds", [True, False])
def test_flags_of_a_gguf_are_honored_by_transformers(adds: bool, tmp_path: Path) -> None:
    tokenizer = read(saved(made(), tmp_path / "a", bos_token="<s>", eos_token="</s>"))
    metadata = to_metadata(tokenizer)
    for flag in ("add_bos_token", "add_eos_token"):
        key = f"tokenizer.ggml.{flag}"
        metadata[key] = metadata[key]._replace(content=adds)
    changed = from_metadata(metadata, "model.gguf")
    assert changed is not None
    loaded = transformers.AutoTokenizer.from_pretrained(written(changed, tmp_path / "b"))
    ids = loaded.encode("hell")
    assert (ids[0] == 261, ids[-1] == 262) == (adds, adds)


def test_texts_are_kept_apart_as_roberta_has_it(tmp_path: Path) -> None:
    reference = made()
    reference.post_processor = processors.RobertaProcessing(
        ("</s>", 262), ("<s>", 261), add_prefix_space=False
    )
    source = saved(reference, tmp_path / "a", bos_token="<s>", eos_token="</s>")
    tokenizer = read(source)
    assert tokenizer.flags["add_sep_token"]
    target = written(through_gguf(tokenizer), tmp_path / "b")
    ours = Reference.from_file(str(target / "tokenizer.json"))
    assert ours.encode("a", "b").ids == reference.encode("a", "b").ids


def test_a_gguf_that_does_not_say_whether_texts_are_kept_apart_has_it_from_its_pre_tokenizer(
    tmp_path: Path,
) -> None:
    metadata = to_metadata(read(saved(made(), tmp_path, bos_token="<s>", eos_token="</s>")))
    for flag in ("add_bos_token", "add_eos_token"):
        key = f"tokenizer.ggml.{flag}"
        metadata[key] = metadata[key]._replace(content=True)
    metadata.pop("tokenizer.ggml.add_sep_token", None)
    for pre, is_apart in (("gpt-2", False), ("roberta-bpe", True)):
        metadata["tokenizer.ggml.pre"] = MetadataValue("string", pre)
        changed = from_metadata(metadata, "model.gguf")
        assert changed is not None
        directory = tmp_path / pre
        ours = Reference.from_file(str(written(changed, directory) / "tokenizer.json"))
        between = [262, 262] if is_apart else [262, 261]
        ids = ours.encode("a", "b").ids
        assert ids[2:4] == between, (pre, ids)


@pytest.mark.parametrize(
    "place", ["chat_template.jinja", "tokenizer_config.json", "chat_template.json"]
)
def test_a_chat_template_is_found_where_libraries_keep_it(place: str, tmp_path: Path) -> None:
    config = {"chat_template": TEMPLATE} if place == "tokenizer_config.json" else {}
    saved(made(), tmp_path, **config)
    if place == "chat_template.jinja":
        (tmp_path / place).write_text(TEMPLATE)
    elif place == "chat_template.json":
        (tmp_path / place).write_text(json.dumps({"chat_template": TEMPLATE}))
    assert read(tmp_path).chat_templates == {"": TEMPLATE}


def test_several_chat_templates_come_through(tmp_path: Path) -> None:
    source = saved(made(), tmp_path / "a")
    (source / "chat_template.jinja").write_text(TEMPLATE)
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "rag.jinja").write_text("rag")
    target = written(through_gguf(read(source)), tmp_path / "b")
    loaded = transformers.AutoTokenizer.from_pretrained(target)
    assert loaded.chat_template == {"default": TEMPLATE, "rag": "rag"}


def test_a_directory_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert from_directory(str(tmp_path), 100, "llama") is None


def test_the_fixtures_tokenizer_is_the_same_after_gguf(tiny_llama: Path, tmp_path: Path) -> None:
    target = written(through_gguf(read(tiny_llama)), tmp_path / "b")
    before = json.loads((tiny_llama / "tokenizer.json").read_text())
    after = json.loads((target / "tokenizer.json").read_text())
    # Both forms of merges are equivalent.
    before["model"]["merges"] = [
        merge if isinstance(merge, str) else " ".join(merge) for merge in before["model"]["merges"]
    ]
    assert after == before


@each(
    "edit",
    [
        lambda document: document.pop("model"),
        lambda document: document["model"].update(vocab=[]),
        lambda document: document["model"].update(vocab={"a": 0, "b": 0}),
        lambda document: document["model"].update(vocab={"a": "0"}),
        lambda document: document["model"].update(vocab={"a": True}),
        lambda document: document["model"].update(vocab={"a": 4_000_000}),
        lambda document: document["model"].update(vocab={"a": -1}),
        lambda document: document["model"].update(vocab={"\ud800": 0}),
        lambda document: document["model"].update(merges={}),
        lambda document: document["model"].update(merges=[["a", "b", "c"]]),
        lambda document: document["model"].update(merges=["a"]),
        lambda document: document["model"].update(merges=[1, 2]),
        lambda document: document["model"].update(dropout=0.1),
        lambda document: document["added_tokens"].append({"id": 1}),
        lambda document: document["added_tokens"].append(7),
        lambda document: document.update(pre_tokenizer=[]),
        lambda document: document.update(pre_tokenizer={"type": "Sequence"}),
        lambda document: document.update(normalizer="NFC"),
    ],
)
def test_a_damaged_document_is_an_error_of_ours(
    edit: Callable[[dict[str, Any]], object], tmp_path: Path
) -> None:
    with pytest.raises(TokenizerError):
        read(edited(saved(made(), tmp_path), edit))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\udcff"])
def test_what_is_not_json_is_an_error_of_ours(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        read(tmp_path)


def test_merges_of_what_are_not_tokens_are_not_written() -> None:
    tokenizer = Tokenizer(model="gpt2", tokens=("a", "b"), types=(1, 1), merges=("a b",))
    with pytest.raises(TokenizerError, match="'a b'"):
        to_documents(tokenizer, "llama", {})


def test_tokens_of_one_text_are_not_written() -> None:
    tokenizer = Tokenizer(model="gpt2", tokens=("a", "b", "a"), types=(1, 1, 1), merges=())
    with pytest.raises(TokenizerError, match="tokens 0 and 2 have the same text 'a'"):
        to_documents(tokenizer, "llama", {})


def test_tokens_that_are_not_text_are_not_written() -> None:
    tokenizer = Tokenizer(model="gpt2", tokens=("a", "\udcff"), types=(1, 1), merges=())
    with pytest.raises(
        TokenizerError, match="a token or a chat template is not valid Unicode text"
    ):
        to_documents(tokenizer, "llama", {})


def test_a_rule_that_is_not_known_by_its_name_is_named() -> None:
    tokenizer = Tokenizer(model="gpt2", pre="chameleon", tokens=("a",), types=(1,), merges=())
    with pytest.raises(TokenizerError, match="`chameleon`"):
        to_documents(tokenizer, "llama", {})


@each("kind", ["GPT2Tokenizer", "GPTNeoXTokenizerFast", "PreTrainedTokenizerFast", None])
def test_a_space_that_transformers_adds_before_a_text_is_refused(
    tmp_path: Path, kind: str | None
) -> None:
    saved(made(), tmp_path)
    config = {"add_prefix_space": True} | ({"tokenizer_class": kind} if kind else {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    judge = transformers.AutoTokenizer.from_pretrained(tmp_path)
    if judge("he").input_ids == judge(" he").input_ids:
        with pytest.raises(TokenizerError, match="`add_prefix_space` is true"):
            read(tmp_path)
    else:
        assert kind == "PreTrainedTokenizerFast"
        assert read(tmp_path).pre == "gpt-2"


def test_blooms_own_regular_expression_is_known(tmp_path: Path) -> None:
    reference = made()
    regex = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
    split = pre_tokenizers.Split(Regex(regex), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    reference.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    ours = pre_tokenizers.Split(Regex(regexes.BLOOM), "isolated")
    for text in ("a (b) [c] d|e, f! \u3002g", "x[0] = y|z (w)", "[[,]]"):
        assert split.pre_tokenize_str(text) == ours.pre_tokenize_str(text)
    assert read(saved(reference, tmp_path)).pre == "bloom"


@each("name", ["tokenizer.tiktoken", "hy.tiktoken"])
def test_tokenizer_files_that_are_not_supported_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(TokenizerError, match=re.escape(name)):
        from_directory(str(tmp_path), 0, "llama")
    saved(made(), tmp_path)
    assert read(tmp_path).pre == "gpt-2"
