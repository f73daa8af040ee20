"""SentencePiece tokenizers as a directory's tokenizer.model or tokenizer.json says them.

GGUF's model "llama" is BPE with a score for each token; "t5" is a unigram model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.record import Tokenizer, TokenType
from weightctl.translate.tokenizer.sentencepiece.added_tokens import (
    TokenTable,
    VocabularyEntry,
    added_tokens,
)
from weightctl.translate.tokenizer.sentencepiece.protobuf import BPE, UNIGRAM, parse_sentencepiece
from weightctl.translate.tokenizer.sentencepiece.rules import (
    TextRule,
    is_sentencepiece,
    rule_of_document,
    rule_of_model,
)
from weightctl.translate.tokenizer.sentencepiece.tokens import (
    check_bytes,
    check_words,
    put_bpe,
    put_unigram,
)
from weightctl.translate.tokenizer.surroundings import Surroundings, read_surroundings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.translate.tokenizer.files import TokenizerFiles
    from weightctl.translate.tokenizer.sentencepiece.protobuf import SentencePieceModel

__all__ = ["from_files"]

# What SentencePiece's own file is called by the families whose ids are those of its pieces.
_MODEL_FILES = ("tokenizer.model", "spiece.model")


def from_files(files: TokenizerFiles, model_type: str) -> Tokenizer:  # noqa: ARG001 (what readers are given)
    """Return the SentencePiece tokenizer of a directory.

    The scores are those of its model file. Where that is not there, or tokenizer.json has another
    vocabulary, they are such that joining by score is joining by tokenizer.json's merges. Raises
    `TokenizerError` if neither file can be read.
    """
    document = files.tokenizer
    is_described = document is not None and is_sentencepiece(document)
    if document is not None and is_described and is_list(document["model"].get("vocab")):
        return _from_json(files, document)  # a unigram model's scores are all there
    for name in _MODEL_FILES:
        data = files.data(name)
        if data is not None:
            model = parse_sentencepiece(data, files.path(name))
            if document is None or not is_described or _is_of(model, document):
                return _from_model(files, model, files.path(name))
    if document is not None and is_described:
        return _from_json(files, document)
    if document is not None:
        raise TokenizerError(
            f"{files.path('tokenizer.json')}: its BPE is neither byte-level nor SentencePiece",
            hint=KEEP_HINT,
        )
    raise TokenizerError(
        f"{files.directory}: tokenizer.json and {' and '.join(_MODEL_FILES)} are missing",
        hint=f"download tokenizer.json from the source of the checkpoint; {KEEP_HINT}",
    )


def _is_of(model: SentencePieceModel, document: Mapping[str, Any]) -> bool:
    """Whether tokenizer.json gives the ordinary pieces of a model file the same ids."""
    ids = document["model"].get("vocab")
    return is_object(ids) and all(
        ids.get(piece.text) == index
        for index, piece in enumerate(model.pieces)
        if piece.type == TokenType.NORMAL
    )


def _from_model(files: TokenizerFiles, model: SentencePieceModel, path: str) -> Tokenizer:
    if model.algorithm not in {BPE, UNIGRAM}:
        raise TokenizerError(
            f"{path}: its algorithm {model.algorithm} is neither BPE nor unigram",
            hint=KEEP_HINT,
        )
    is_unigram = model.algorithm == UNIGRAM
    vocabulary = TokenTable(path)
    for index, piece in enumerate(model.pieces):
        if piece.type == TokenType.USER_DEFINED:
            vocabulary.add(index, piece.text, special=False)
        else:
            vocabulary.put(index, VocabularyEntry(piece.text, piece.score, piece.type))
    document = files.tokenizer
    if document is not None and is_sentencepiece(document):
        # What transformers goes by.
        rule = rule_of_document(document, files.path("tokenizer.json"), is_unigram=is_unigram)
    else:
        rule = rule_of_model(model, path, is_unigram=is_unigram)
    # What the classes of llama and gemma do, and that of t5, where no file says it.
    flags = {"add_bos_token": not is_unigram, "add_eos_token": is_unigram}
    special = {
        "bos": model.bos,
        "eos": model.eos,
        "unknown": model.unknown,
        "padding": model.padding,
    }
    return _build_tokenizer(
        files, vocabulary, rule, special=special, flags=flags, is_unigram=is_unigram
    )


def _from_json(files: TokenizerFiles, document: Mapping[str, Any]) -> Tokenizer:
    model, path = document["model"], files.path("tokenizer.json")
    vocabulary = TokenTable(path)
    is_unigram = is_list(model.get("vocab"))
    if is_unigram:
        put_unigram(vocabulary, model, path)
    else:
        put_bpe(vocabulary, model, path, added={text for _, text, _ in added_tokens(files)})
    rule = rule_of_document(document, path, is_unigram=is_unigram)
    return _build_tokenizer(files, vocabulary, rule, special=None, flags={}, is_unigram=is_unigram)


def _build_tokenizer(
    files: TokenizerFiles,
    vocabulary: TokenTable,
    rule: TextRule,
    *,
    special: Mapping[str, int] | None,
    flags: Mapping[str, bool],
    is_unigram: bool,
) -> Tokenizer:
    for index, text, is_special in added_tokens(files):
        vocabulary.add(index, text, special=is_special)
    entries = vocabulary.entries()
    check_bytes(entries, files.directory, is_unigram=is_unigram)
    if rule.splits_words:
        check_words(entries, files.directory)
    flags = {"add_space_prefix": rule.adds_prefix, **flags}
    if is_unigram:
        flags["remove_extra_whitespaces"] = rule.removes_spaces
    declared = files.config.get("add_prefix_space")
    is_llama = str(files.config.get("tokenizer_class", "")).startswith("Llama")
    if isinstance(declared, bool) and (is_llama or files.tokenizer is None):
        # The classes of llama heed it; the others do what tokenizer.json says.
        flags = {**flags, "add_space_prefix": declared}
    unknown = [index for index, entry in enumerate(entries) if entry.type == TokenType.UNKNOWN]
    if special is None:
        ids = {entry.text: index for index, entry in enumerate(entries)}
        around = read_surroundings(files.tokenizer or {}) or Surroundings()
        special = {"bos": ids.get(around.first or "", -1), "eos": ids.get(around.last or "", -1)}
    roles = {**({"unknown": unknown[0]} if unknown else {}), **special}
    return Tokenizer(
        model="t5" if is_unigram else "llama",
        pre="default",
        tokens=tuple(entry.text for entry in entries),
        types=tuple(int(entry.type) for entry in entries),
        scores=tuple(entry.score for entry in entries),
        special={word: index for word, index in roles.items() if 0 <= index < len(entries)},
        flags=flags,
        charsmap=rule.charsmap or None,
        notes=rule.notes,
    )
