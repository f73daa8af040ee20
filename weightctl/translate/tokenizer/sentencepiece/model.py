"""Reading of SentencePiece tokenizers from a directory's tokenizer.model or tokenizer.json.

GGUF's model "llama" is BPE with a score for each token, "gemma4" is BPE with a list of merges, and
"t5" is a unigram model. For BPE, llama.cpp marks spaces and can put a mark before the text; it does
not normalize text. For "t5", it also applies SentencePiece's compiled normalizer and can remove
extra spaces. Steps of a tokenizer.json with this effect become a `_TextRule`; other steps are
refused, because text would be tokenized differently.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.post_processor import Surroundings, read_surroundings
from weightctl.translate.tokenizer.record import Tokenizer, TokenType
from weightctl.translate.tokenizer.sentencepiece.added_tokens import (
    ADDED_SCORE,
    SPACE,
    TokenTable,
    VocabularyEntry,
    added_tokens,
)
from weightctl.translate.tokenizer.sentencepiece.normalizers import Charsmap, Steps
from weightctl.translate.tokenizer.sentencepiece.protobuf import BPE, UNIGRAM, parse_sentencepiece
from weightctl.translate.tokenizer.sentencepiece.tokens import (
    check_bytes,
    check_words,
    list_pairs,
    put_bpe,
    put_unigram,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.translate.tokenizer.files import TokenizerFiles
    from weightctl.translate.tokenizer.sentencepiece.protobuf import SentencePieceModel

_DEPTH = 8
_DECODED = (
    "the model file changes the text of generated tokens (`denormalizer_spec`); llama.cpp does not"
)
_SPACES_ALONE = (
    "SentencePiece adds the prefix even to a text that consists only of spaces; llama.cpp does not"
)
_EXTRA = (
    "SentencePiece removes extra spaces from text for this model; llama.cpp and the llama "
    "tokenizer of transformers keep them"
)
# The model types whose BPE has the model "gemma4" in GGUF, and the tokens of theirs that llama.cpp
# shows in generated text, because its parser of chats reads them (`conversion/gemma.py`).
_MERGED_TYPES = ("gemma4", "gemma4_text")
_SHOWN = frozenset(
    ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
     "<tool_response|>", '<|"|>']
)  # fmt: skip
_LINES = (
    "llama.cpp splits text at line breaks before it merges tokens, so it does not use tokens with "
    "both a line break and other characters, such as {!r:.50}"
)
# The names of SentencePiece's own file in families whose ids are those of its pieces.
_MODEL_FILES = ("tokenizer.model", "spiece.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class _TextRule:
    """The treatment of text. `notes` are the differences from llama.cpp.

    `adds_prefix`: a space is added before it. `removes_spaces`: spaces at its ends are removed, and
    one of several consecutive spaces is kept. `splits_words`: tokens have spaces only at their
    start. `charsmap` is the compiled normalizer, empty if there is none.
    """

    adds_prefix: bool
    removes_spaces: bool = False
    splits_words: bool = False
    charsmap: bytes = b""
    notes: tuple[str, ...] = ()


def _is_sentencepiece(document: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json is that of a SentencePiece tokenizer, BPE or unigram."""
    model = document.get("model")
    if not is_object(model):
        return False
    steps = [step for step in _all_steps(document) if is_object(step)]
    if any(step.get("type") == "ByteLevel" for step in steps):
        return False
    if is_list(model.get("vocab")):
        return True  # a unigram model, whose type is missing in old files
    is_bpe = model.get("type") == "BPE" or "merges" in model
    return is_bpe and (model.get("byte_fallback") is True or any(map(_makes_marks, steps)))


def _rule_of_document(document: Mapping[str, Any], path: str, *, is_unigram: bool) -> _TextRule:
    """Return the effect of the normalizer and the pre_tokenizer of a tokenizer.json.

    Raises `TokenizerError`, which shows the step, if llama.cpp does not support a step.
    """
    steps = Steps(path, is_unigram=is_unigram)
    for step in _all_steps(document):
        steps.take(step)
    if not steps.is_marked:
        raise TokenizerError(
            f"{path}: its normalizer and pre_tokenizer keep spaces, but llama.cpp "
            f"replaces them with `{SPACE}`: text would be tokenized differently",
            hint=KEEP_HINT,
        )
    _check_prefix(
        path, removes=steps.removes_spaces, adds=bool(steps.prefix), is_unigram=is_unigram
    )
    return _TextRule(
        adds_prefix=bool(steps.prefix),
        removes_spaces=steps.removes_spaces,
        splits_words=steps.splits_words,
        charsmap=steps.charsmap,
        notes=tuple(steps.notes()),
    )


def _rule_of_model(model: SentencePieceModel, path: str, *, is_unigram: bool) -> _TextRule:
    """Return the rule of SentencePiece's own file.

    Raises `TokenizerError` if llama.cpp does not support it.
    """
    removes = model.remove_extra_whitespaces
    if model.charsmap and not is_unigram:
        raise TokenizerError(
            f"{path}: its normalizer `{model.normalizer}` changes text, but llama.cpp does not "
            "normalize text for a SentencePiece BPE: text would be tokenized differently",
            hint=KEEP_HINT,
        )
    if model.marks_word_ends or not model.escapes_spaces:
        does = "marks the ends of words" if model.marks_word_ends else "does not mark spaces"
        raise TokenizerError(
            f"{path}: the tokenizer {does}, but llama.cpp marks the starts of words: text would be "
            "tokenized differently",
            hint=KEEP_HINT,
        )
    _check_prefix(path, removes=removes, adds=model.add_dummy_prefix, is_unigram=is_unigram)
    if model.charsmap:
        Charsmap(model.charsmap, path)
    notes = [_DECODED] if model.denormalizes else []
    if removes and not is_unigram:
        notes.append(_EXTRA)
    elif is_unigram and model.add_dummy_prefix and not removes:
        notes.append(_SPACES_ALONE)
    return _TextRule(
        adds_prefix=model.add_dummy_prefix,
        removes_spaces=removes and is_unigram,
        charsmap=model.charsmap,
        notes=tuple(notes),
    )


def _check_prefix(path: str, *, removes: bool, adds: bool, is_unigram: bool) -> None:
    if is_unigram and removes and not adds:
        raise TokenizerError(
            f"{path}: the tokenizer removes extra spaces, and adds no space at the start of a "
            "text; llama.cpp always adds one there if extra spaces are removed, so it would "
            "tokenize text differently",
            hint=KEEP_HINT,
        )


def _makes_marks(step: Mapping[str, Any]) -> bool:
    return step.get("type") == "Metaspace" or (
        step.get("type") == "Replace" and step.get("content") == SPACE
    )


def _all_steps(document: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the steps of the normalizer and the pre_tokenizer, with sequences and their steps."""
    parts = (document.get("normalizer"), document.get("pre_tokenizer"))
    waiting = [(part, 0) for part in parts if part is not None]
    while waiting:
        step, depth = waiting.pop(0)
        yield step
        for key in ("normalizers", "pretokenizers") if is_object(step) else ():
            within = step.get(key)
            if is_list(within):
                inner: list[Any] = within if depth < _DEPTH else [None]  # None is refused
                waiting = [(part, depth + 1) for part in inner] + waiting


def from_files(files: TokenizerFiles, model_type: str) -> Tokenizer:
    """Return the SentencePiece tokenizer of a directory.

    The scores are those of its model file. If the file is missing, or tokenizer.json has another
    vocabulary, the scores are chosen so that joining by score is the same as joining by
    tokenizer.json's merges. Raises `TokenizerError` if neither file can be read.
    """
    document = files.tokenizer
    is_described = document is not None and _is_sentencepiece(document)
    if document is not None and is_described and is_list(document["model"].get("vocab")):
        return _from_json(files, document)  # a unigram model has all scores
    if document is not None and is_described and model_type in _MERGED_TYPES:
        return _with_merges(_from_json(files, document), document, files)
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
    if document is not None and _is_sentencepiece(document):
        # transformers uses this file.
        rule = _rule_of_document(document, files.path("tokenizer.json"), is_unigram=is_unigram)
    else:
        rule = _rule_of_model(model, path, is_unigram=is_unigram)
    # The defaults of the classes of llama, gemma and t5.
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
    rule = _rule_of_document(document, path, is_unigram=is_unigram)
    return _build_tokenizer(files, vocabulary, rule, special=None, flags={}, is_unigram=is_unigram)


def _with_merges(
    tokenizer: Tokenizer, document: Mapping[str, Any], files: TokenizerFiles
) -> Tokenizer:
    """Return a tokenizer with tokenizer.json's merges, and its spelling, instead of scores."""
    tokens = list(tokenizer.tokens)
    for index, text, _ in added_tokens(files):
        if isinstance(index, int):
            tokens[index] = text
    pairs = list(list_pairs(document["model"].get("merges"), files.path("tokenizer.json")))
    made = (left + right for left, right in pairs)
    mixed = next((text for text in made if "\n" in text and text.strip("\n")), None)
    notes = [] if mixed is None else [_LINES.format(mixed)]
    return replace(
        tokenizer,
        model="gemma4",
        pre=None,  # implied by the model
        tokens=tuple(tokens),
        types=tuple(
            int(TokenType.USER_DEFINED) if text in _SHOWN else kind
            for text, kind in zip(tokens, tokenizer.types, strict=True)
        ),
        scores=(ADDED_SCORE,) * len(tokens),
        merges=tuple(f"{left} {right}" for left, right in pairs),
        flags={**tokenizer.flags, "add_bos_token": True},
        notes=(*tokenizer.notes, *notes),
    )


def _build_tokenizer(
    files: TokenizerFiles,
    vocabulary: TokenTable,
    rule: _TextRule,
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
        # The classes of llama use it; the others use tokenizer.json.
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
