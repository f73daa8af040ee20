"""Byte-level BPE (`tokenizer.ggml.model` "gpt2"): tokenizer.json, or vocab.json and merges.txt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unicodedata import category

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_list, is_object
from weightctl.text.wording import join_names
from weightctl.translate.tokenizer import regexes
from weightctl.translate.tokenizer.added import (
    is_padding,
    order_tokens,
    read_added,
    to_added_tokens,
)
from weightctl.translate.tokenizer.files import GENERIC_CLASSES, KEEP_HINT, TENSORS_HINT
from weightctl.translate.tokenizer.post_processor import to_template
from weightctl.translate.tokenizer.pre_names import DEFAULT, PRES, Pre, find_nearest, names_of
from weightctl.translate.tokenizer.record import Tokenizer
from weightctl.translate.tokenizer.rules import (
    BYTES,
    PreTokenizerRule,
    byte_level,
    hash_rule,
    parse,
    show_rule_parts,
    to_normalizer,
    to_pre_tokenizer,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from weightctl.translate.tokenizer.files import TokenizerFiles

_SPACE = "\u0120"  # the character for a space in byte-level tokens
# The rules for splitting text of tokenizer classes that have no tokenizer.json.
_CLASSES = {
    "GPT2Tokenizer": PreTokenizerRule((regexes.GPT_2, BYTES)),
    "RobertaTokenizer": PreTokenizerRule((regexes.GPT_2, BYTES)),
    "Qwen2Tokenizer": PreTokenizerRule((regexes.QWEN_2, BYTES), is_composed=True),
}
_CLASS = "GPT2Tokenizer"
# The name of tokenizers of words in GGUF, and its flag for small letters.
_WORDS, _LOWERCASE = "whitespace", "normalizer.lowercase"
_JOINERS = "\u200c\u200d"
_NO_UNKNOWN = (
    "llama.cpp leaves out characters that are not in the vocabulary; transformers has the unknown "
    "token for them"
)
_JOINS = "llama.cpp can join letters and the punctuation beside them, which transformers does not"
# What messages call the step that has no regular expression.
_BYTES_TEXT = "bytes to characters"
# The limit of digits of an id: Python refuses to convert thousands of digits.
_LONGEST = 20


def _read_merges(merges: Any, where: str) -> tuple[str, ...]:
    """Return merges as "left right", from a list of such strings or of pairs.

    Raises `TokenizerError` for other values.
    """
    if not is_list(merges):
        raise TokenizerError(f"{where}: its `model` has no list of `merges`", hint=KEEP_HINT)
    if all(isinstance(merge, str) for merge in merges):
        made = tuple(merges)
    else:
        try:
            made = tuple(
                f"{left.replace(' ', _SPACE)} {right.replace(' ', _SPACE)}"
                for left, right in merges
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise TokenizerError(
                f"{where}: a merge is not a pair of tokens", hint=KEEP_HINT
            ) from error
    strange = next((merge for merge in made if merge.count(" ") != 1), None)
    if strange is not None:
        raise TokenizerError(
            f"{where}: the merge {strange!r:.200} does not have two tokens", hint=KEEP_HINT
        )
    return made


def check_merges(merges: Iterable[str], vocabulary: Container[str]) -> list[str]:
    """Return merges for tokenizer.json.

    Raises `TokenizerError` if a part of a merge, or its result, is not a token.
    """
    made = list(merges)
    for merge in made:
        left, _, right = merge.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise TokenizerError(
                f"the merge {merge!r:.200} has a token that is not in the vocabulary",
                hint=f"`tokenizer.ggml.merges` is damaged; {KEEP_HINT}",
            )
    return made


def _slow_document(files: TokenizerFiles) -> dict[str, Any]:
    """Return a document like tokenizer.json from vocab.json and merges.txt."""
    vocabulary = files.document("vocab.json")
    merges = files.text("merges.txt")
    if vocabulary is None or merges is None:
        raise TokenizerError(
            f"{files.directory}: tokenizer.json is missing, and so are vocab.json and merges.txt",
            hint=f"download them from the source of the checkpoint; {KEEP_HINT}",
        )
    added = {**(files.document("added_tokens.json") or {})}
    rule = _CLASSES.get(_class_of(files), _CLASSES[_CLASS])
    lines = merges.splitlines()
    return {
        "added_tokens": [*_list_added(files, vocabulary, added)],
        "normalizer": to_normalizer(rule),
        "pre_tokenizer": to_pre_tokenizer(rule),
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [line for line in lines if line and not line.startswith("#version")],
        },
    }


def _class_of(files: TokenizerFiles) -> str:
    return str(files.config.get("tokenizer_class", _CLASS)).removesuffix("Fast")


def _list_added(
    files: TokenizerFiles, vocabulary: Mapping[str, Any], added: Mapping[str, Any]
) -> list[dict[str, Any]]:
    decoder = files.config.get("added_tokens_decoder")
    if is_object(decoder):
        return [
            {**entry, "id": int(token)}
            for token, entry in decoder.items()
            if is_object(entry) and token.isdecimal() and len(token) < _LONGEST
        ]
    special = {**added}
    for value in files.special_tokens().values():
        if value in vocabulary:
            special[value] = vocabulary[value]
    return [
        {"id": token, "content": text, "special": text not in added}
        for text, token in special.items()
    ]


def from_files(files: TokenizerFiles, model_type: str) -> Tokenizer:
    """Return the tokenizer of a directory's tokenizer.json, or vocab.json and merges.txt.

    Raises `TokenizerError`, which shows the pre-tokenizer, if GGUF has no name for it.
    """
    del model_type
    document = files.tokenizer
    where = files.path("tokenizer.json")
    if document is None:
        where = files.path("vocab.json")
        document = _slow_document(files)
    model, vocabulary = _read_model(document, where)
    is_generic = files.config.get("tokenizer_class") in GENERIC_CLASSES
    if files.config.get("add_prefix_space") is True and not is_generic:
        raise TokenizerError(
            f"{files.path('tokenizer_config.json')}: `add_prefix_space` is true, but llama.cpp "
            "adds no space before a text",
            hint=KEEP_HINT,
        )
    tokens, types = order_tokens(vocabulary, read_added(document, where), where)
    merges = _read_merges(model.get("merges"), where)
    return Tokenizer(
        model="gpt2",
        pre=_name(document, model, merges, where),
        tokens=tuple(tokens),
        types=tuple(types),
        merges=merges,
    )


def _read_model(
    document: Mapping[str, Any], where: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the model of tokenizer.json and its vocabulary; `TokenizerError` if it has none."""
    model = document.get("model")
    vocabulary = model.get("vocab") if is_object(model) else None
    if not is_object(model) or not is_object(vocabulary):
        raise TokenizerError(f"{where}: its `model` has no `vocab`", hint=KEEP_HINT)
    _check_model(model, where)
    return model, vocabulary


def from_words(files: TokenizerFiles, model_type: str) -> Tokenizer:
    """Return a tokenizer of words without white space, whose tokens are characters, not bytes.

    Raises `TokenizerError` for normalizers other than one to small letters.
    """
    del model_type
    document, where = files.tokenizer or {}, files.path("tokenizer.json")
    model, vocabulary = _read_model(document, where)
    normalizer = document.get("normalizer")
    if normalizer is not None and normalizer != {"type": "Lowercase"}:
        raise TokenizerError(
            f"{where}: its normalizer {normalizer!r:.200} is not supported by llama.cpp for "
            "this kind of tokenizer",
            hint=KEEP_HINT,
        )
    tokens, types = order_tokens(vocabulary, read_added(document, where), where)
    merges = _read_merges(model.get("merges"), where)
    notes = [_NO_UNKNOWN] if model.get("unk_token") else []
    notes += (
        [_JOINS] if any(len({*map(_is_of_word, merge)} - {None}) > 1 for merge in merges) else []
    )
    return Tokenizer(
        model=_WORDS,
        pre=_WORDS,
        tokens=tuple(tokens),
        types=tuple(types),
        merges=merges,
        flags={_LOWERCASE: normalizer is not None},
        notes=tuple(notes),
    )


def _is_of_word(char: str) -> bool | None:
    """Whether the pre-tokenizer takes a character for one of a word; None for a space."""
    kind = category(char)
    is_word = kind[0] in "LM" or kind in ("Nd", "Nl", "Pc") or char in _JOINERS
    return None if char == " " else is_word


def to_words_json(tokenizer: Tokenizer, model_type: str) -> dict[str, Any]:
    """Return the document of tokenizer.json for a tokenizer of words."""
    usual = to_tokenizer_json(replace(tokenizer, pre=DEFAULT), model_type)
    unknown = tokenizer.special.get("unknown")
    model = {**usual["model"], "unk_token": None if unknown is None else tokenizer.tokens[unknown]}
    return {
        **usual,
        "normalizer": {"type": "Lowercase"} if tokenizer.flags.get(_LOWERCASE) else None,
        "pre_tokenizer": {"type": "Whitespace"},
        "decoder": None,
        "model": {**model, "ignore_merges": False},
    }


def to_tokenizer_json(tokenizer: Tokenizer, model_type: str) -> dict[str, Any]:
    """Return the document of tokenizer.json.

    Raises `TokenizerError` if the name of the pre-tokenizer is unknown, or the tokens contradict
    it.
    """
    del model_type
    pre = _pre_of(tokenizer)
    vocabulary = {
        text: token
        for token, text in enumerate(tokenizer.tokens)
        if not is_padding(tokenizer, token)
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": to_added_tokens(tokenizer),
        "normalizer": to_normalizer(pre.rule),
        "pre_tokenizer": to_pre_tokenizer(pre.rule),
        "post_processor": _post_processor(tokenizer, pre),
        "decoder": byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.ignores_merges,
            "vocab": vocabulary,
            "merges": check_merges(tokenizer.merges or (), vocabulary),
        },
    }


def _pre_of(tokenizer: Tokenizer) -> Pre:
    """Return the rule for a tokenizer's `pre`; raises `TokenizerError` for an unknown name."""
    name = tokenizer.pre or DEFAULT
    if name not in PRES:
        raise TokenizerError(
            f"`tokenizer.ggml.pre` is `{name}`, a pre-tokenizer that weightctl does not support",
            hint=TENSORS_HINT,
        )
    return PRES[name]


def _name(
    document: Mapping[str, Any], model: Mapping[str, Any], merges: tuple[str, ...], where: str
) -> str:
    rule: PreTokenizerRule = parse(document, where)
    names = list(names_of(rule))
    if not names:
        raise _unknown(document, rule, where)
    ignores = bool(model.get("ignore_merges"))
    for name in names:
        if PRES[name].ignores_merges == ignores:
            return name
    if _all_reachable(document, model["vocab"], merges):
        return names[0]  # merging produces the same tokens
    raise TokenizerError(
        f"{where}: `ignore_merges` is {str(ignores).lower()}, but GGUF's pre-tokenizer "
        f"for this model (`{names[0]}`) uses the opposite value",
        hint=KEEP_HINT,
    )


def _unknown(document: Mapping[str, Any], rule: PreTokenizerRule, where: str) -> TokenizerError:
    """Return the error for a rule without a name, with the rule that is most like it."""
    nearest, own, other = find_nearest(rule)
    differences = [
        f"{who} has {join_names([f'`{step or _BYTES_TEXT}`' for step in steps], len(steps))}"
        for who, steps in (("this one", own), (f"`{nearest}`", other))
        if steps
    ]
    text = ", and ".join(differences) or "the same steps are in another order"
    return TokenizerError(
        f"{where}: GGUF has no name for this pre-tokenizer (SHA-256 of its rule: "
        f"{hash_rule(rule)}): {show_rule_parts(document)}. The nearest that llama.cpp has is "
        f"`{nearest}`, which splits text in other places: {text}",
        hint="this pre-tokenizer needs support in llama.cpp, and a line in "
        f"weightctl/translate/tokenizer/pre_names.py; {KEEP_HINT}",
    )


def _all_reachable(
    document: Mapping[str, Any], vocabulary: Mapping[str, int], merges: tuple[str, ...]
) -> bool:
    made = {merge.replace(" ", "", 1) for merge in merges}
    added = {entry["content"] for entry in read_added(document, "").values()}
    return all(len(text) == 1 or text in made or text in added for text in vocabulary)


def _check_model(model: Mapping[str, Any], where: str) -> None:
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout", "byte_fallback"):
        if model.get(key):
            raise TokenizerError(
                f"{where}: `{key}` is {model[key]!r:.200}, which GGUF's byte-level BPE "
                "does not support",
                hint=KEEP_HINT,
            )


def _post_processor(tokenizer: Tokenizer, pre: Pre) -> dict[str, Any]:
    flags = tokenizer.flags
    first = _token(tokenizer, "bos") if flags.get("add_bos_token", pre.adds_bos) else None
    last = _token(tokenizer, "eos") if flags.get("add_eos_token") else None
    if flags.get("add_sep_token", pre.adds_separator) and first and last:
        return {
            "type": "RobertaProcessing",
            "sep": list(last),
            "cls": list(first),
            "trim_offsets": True,
            "add_prefix_space": False,
        }
    template = to_template(first, last)
    bytes_kept = {**byte_level(use_regex=True), "trim_offsets": False}
    if template is None:
        return bytes_kept
    return {"type": "Sequence", "processors": [bytes_kept, template]}


def _token(tokenizer: Tokenizer, word: str) -> tuple[str, int] | None:
    token = tokenizer.special.get(word)
    return None if token is None else (tokenizer.tokens[token], token)
