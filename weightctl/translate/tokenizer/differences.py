"""Differences between llama.cpp and the files of a tokenizer, as sentences for users.

GGUF cannot express these: a normalizer of byte-level BPE, whether an added token removes spaces
beside it, a post_processor with more than a first and a last token, a decoder. The original values
are stored for conversion back (see `directory.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unicodedata import category

from weightctl.text.untyped import is_list, is_object
from weightctl.text.wording import join_names
from weightctl.translate.tokenizer.added import ADDED
from weightctl.translate.tokenizer.post_processor import read_surroundings
from weightctl.translate.tokenizer.pre_names import DEFAULT, PRES
from weightctl.translate.tokenizer.record import TokenType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from weightctl.translate.tokenizer.files import TokenizerFiles
    from weightctl.translate.tokenizer.record import Tokenizer

_MOST_NAMED = 4
_DIGITS = 10
# llama.cpp removes the spaces before one token for these values of `tokenizer.ggml.pre`, and the
# spaces after all added tokens except some for these values of `general.name`.
_STRIPS_MASK = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
_PHI_3 = ("phi-3", "phi3")
_PHI_3_PLAIN = {"<unk>", "<s>", "<|endoftext|>"}
_PHI_3_TOKENS = {*_PHI_3_PLAIN, "</s>"}
_MODERN_BERT = "modern-bert"
# The decoders that have the same effect as llama.cpp, for each `tokenizer.ggml.model`. None allows
# any options of a decoder.
_MARKS_DECODERS: dict[str, dict[str, Any] | None] = {
    "Replace": {"pattern": {"String": "\u2581"}, "content": " "},
    "ByteFallback": None,
    "Fuse": None,
    "Strip": {"content": " ", "start": 1, "stop": 0},
    "Metaspace": None,
}
_DECODERS: dict[str, dict[str, dict[str, Any] | None]] = {
    "gpt2": {"ByteLevel": None},
    "bert": {"WordPiece": None},
    "llama": _MARKS_DECODERS,
    "gemma4": _MARKS_DECODERS,
    "t5": _MARKS_DECODERS,
}
# The roles of the tokens before and after a text, for classes of transformers that replace the
# post_processor of tokenizer.json.
_ROLES = {
    "BertTokenizer": ("cls", "sep"),
    "RobertaTokenizer": ("cls", "sep"),
    "XLMRobertaTokenizer": ("bos", "eos"),
    "CamembertTokenizer": ("bos", "eos"),
}
_COMPOSES = (
    "llama.cpp does not compose characters (the normalizer NFC): text with separate "
    "accents, such as `é`, is tokenized differently in transformers"
)

_PARTS_MARKS = (
    "llama.cpp splits text with combining marks, such as Hindi, in other places than transformers "
    "(the pre_tokenizer)"
)
_JOINS_CASE = (
    "llama.cpp does not split words at capital letters, such as `getName`, as transformers does "
    "(the pre_tokenizer)"
)
_REMOVES_MARKS = (
    "llama.cpp removes spacing combining marks, such as vowel signs of Hindi and Burmese, which "
    "transformers keeps: text with them is tokenized differently"
)


def differences(tokenizer: Tokenizer, files: TokenizerFiles, name: str) -> Iterator[str]:
    """Yield the differences between llama.cpp's treatment of text and that of a directory's files.

    `name` is the model's `general.name` in GGUF, which llama.cpp uses.
    """
    document = files.tokenizer or {}
    if tokenizer.model == "gpt2" and _steps(document.get("normalizer"), "normalizers"):
        yield _COMPOSES  # other normalizers of byte-level BPE are refused
    pre = PRES[tokenizer.pre or DEFAULT] if tokenizer.model == "gpt2" else None
    if pre is not None and pre.parts_marks:
        yield _PARTS_MARKS
    if pre is not None and pre.joins_case:
        yield _JOINS_CASE
    is_stripped = tokenizer.model == "bert" and tokenizer.flags.get("normalizer.strip_accents")
    if is_stripped and any(category(each) == "Mc" for each in {*"".join(tokenizer.tokens)}):
        yield _REMOVES_MARKS
    yield from _of_flags(tokenizer, list_added_entries(files), document, name)
    if files.tokenizer is not None:
        yield from _of_surroundings(tokenizer, files)
        yield from _of_names(tokenizer, files)
    usual = _DECODERS.get(tokenizer.model, {})
    steps = _steps(document.get("decoder"), "decoders")
    if others := [str(step.get("type")) for step in steps if not _is_listed(step, usual)]:
        yield (
            f"llama.cpp does not use the decoder of tokenizer.json ({', '.join(others)}): "
            "generated text may differ"
        )


def _is_listed(step: Mapping[str, Any], usual: Mapping[str, dict[str, Any] | None]) -> bool:
    kind = str(step.get("type"))
    options = usual.get(kind) or {}
    return kind in usual and options.items() <= step.items()


def list_added_entries(files: TokenizerFiles) -> dict[int, Mapping[str, Any]]:
    """Return the added tokens of a directory by id, in the form of entries of tokenizer.json."""
    listed = (files.tokenizer or {}).get("added_tokens")
    if is_list(listed):
        entries = [(entry.get("id"), entry) for entry in listed if is_object(entry)]
    else:
        decoder = files.config.get("added_tokens_decoder")
        entries = [
            (int(key), entry)
            for key, entry in (decoder if is_object(decoder) else {}).items()
            if key.isascii() and key.isdigit() and len(key) < _DIGITS and is_object(entry)
        ]
    return {token: entry for token, entry in entries if isinstance(token, int)}


def _of_flags(
    tokenizer: Tokenizer,
    entries: Mapping[int, Mapping[str, Any]],
    document: Mapping[str, Any],
    name: str,
) -> Iterator[str]:
    count = len(tokenizer.tokens)
    own = {token: entry for token, entry in entries.items() if 0 <= token < count}

    def having(flag: str) -> set[str]:
        return {tokenizer.tokens[token] for token, entry in own.items() if entry.get(flag) is True}

    left, right = _find_stripped(tokenizer, name)
    # A model of this family has all of these tokens.
    is_phi_3 = {*tokenizer.tokens} >= _PHI_3_TOKENS
    as_phi_3 = is_phi_3 and having("rstrip") <= _find_stripped(tokenizer, _PHI_3[0])[1]
    for flag, where, found, here in (
        ("lstrip", "before", having("lstrip"), left),
        ("rstrip", "after", having("rstrip"), right),
    ):
        if lost := found - here:
            hint = (
                "  (it removes white space if `general.name` contains `phi-3`)" if as_phi_3 else ""
            )
            yield (
                f"transformers removes white space {where} {_join(lost)} (`{flag}`), but "
                f"llama.cpp keeps it{hint if flag == 'rstrip' else ''}"
            )
        if gained := here - found:
            yield (
                f"llama.cpp removes white space {where} {_join(gained)} because of the "
                "model's name, but transformers keeps it"
            )
    if words := having("single_word"):
        yield (
            f"transformers matches {_join(words)} only as separate words (`single_word`), "
            "but llama.cpp also matches them inside of words"
        )
    if _rewrites(document) and (normalized := having("normalized")):
        yield (
            f"transformers matches {_join(normalized)} in normalized text (`normalized`), "
            "but llama.cpp matches them in the original text"
        )


def _find_stripped(tokenizer: Tokenizer, name: str) -> tuple[set[str], set[str]]:
    """Return the texts of tokens before which, and after which, llama.cpp removes white space."""
    name, pre = name.lower(), tokenizer.pre or ""
    added = {
        text for text, kind in zip(tokenizer.tokens, tokenizer.types, strict=True) if kind in ADDED
    }
    if any(each in pre for each in _STRIPS_MASK):
        return added & {"<mask>"}, set()
    if any(each in name for each in _PHI_3):
        return set(), added - _PHI_3_PLAIN
    return (added & {"[MASK]"} if _MODERN_BERT in name else set()), set()


def _rewrites(document: Mapping[str, Any]) -> bool:
    """Whether a normalizer does more than replace the spaces of a text."""
    steps = _steps(document.get("normalizer"), "normalizers")
    return any(step.get("type") != "Replace" for step in steps)


def _of_surroundings(tokenizer: Tokenizer, files: TokenizerFiles) -> Iterator[str]:
    document = files.tokenizer or {}
    around = read_surroundings(document)
    is_bert = tokenizer.model == "bert"
    for flag, where, says, words in (
        ("add_bos_token", "before", around and around.before, ("bos", "cls")),
        ("add_eos_token", "after", around and around.behind, ("eos", "seperator")),
    ):
        puts = is_bert or tokenizer.flags.get(flag, False)
        token = tokenizer.special.get(words[is_bert])
        here = [tokenizer.tokens[token]] if puts and token is not None else []
        if list(says or ()) != here:
            yield (
                f"tokenizer.json adds {_quote(says or ())} {where} a text "
                f"(post_processor), but llama.cpp adds {_quote(here)}"
            )


def _of_names(tokenizer: Tokenizer, files: TokenizerFiles) -> Iterator[str]:
    """Yield what follows from special tokens and settings of tokenizer_config.json."""
    stated = files.special_tokens()
    is_bert = tokenizer.model == "bert"
    found = {
        text
        for text, type_ in zip(tokenizer.tokens, tokenizer.types, strict=True)
        if type_ != TokenType.NORMAL
    }
    if is_bert and (words := files.special_texts(has_added=True) & {*tokenizer.tokens} - found):
        yield (
            f"transformers finds the tokens {_join(words)} of tokenizer_config.json also inside of "
            "words, but llama.cpp does not"
        )
    if missing := {*stated.values()} - {*tokenizer.tokens}:
        yield (
            f"the special tokens {_join(missing)} of tokenizer_config.json are not in the "
            "vocabulary: transformers adds them as new tokens"
        )
    around = read_surroundings(files.tokenizer or {})
    kind = str(files.config.get("tokenizer_class")).removesuffix("Fast")
    texts = (around and around.first, around and around.last)
    for role, text in zip(_ROLES.get(kind, ()), texts, strict=False):
        key = f"{role}_token"
        named = stated.get(key, None if key in files.config else text)
        if text is not None and named != text:
            yield (
                f"tokenizer_config.json has the {key} `{named}`, which "
                f"transformers adds to each text; llama.cpp adds `{text}`, as tokenizer.json states"
            )
    model = (files.tokenizer or {}).get("model")
    unknown: Any = model.get("unk_id") if is_object(model) else None
    if (
        kind in _ROLES
        and ("unk_token" in files.config or "unk_token" in stated)
        and unknown in range(len(tokenizer.tokens))
        and stated.get("unk_token") != tokenizer.tokens[unknown]
    ):
        yield "tokenizer_config.json and tokenizer.json differ in the token for unknown text"
    spaced = files.config.get("add_prefix_space")
    if (spaced is False and tokenizer.model == "t5") or (spaced and tokenizer.model == "gpt2"):
        yield (
            f"tokenizer_config.json sets `add_prefix_space` to {str(spaced).lower()}, which some "
            "versions of transformers apply to each text; llama.cpp goes by tokenizer.json"
        )


def _steps(part: Any, key: str) -> list[Mapping[str, Any]]:
    """Return the steps of a part, with sequences flattened."""
    waiting: list[Any] = [part]
    made: list[Mapping[str, Any]] = []
    while waiting:
        step = waiting.pop(0)
        within = step.get(key) if is_object(step) else None
        if is_list(within):
            waiting = [*within, *waiting]
        elif is_object(step):
            made.append(step)
    return made


def _quote(texts: Collection[str]) -> str:
    return " ".join(f"`{text}`" for text in texts) or "nothing"


def _join(texts: Collection[str]) -> str:
    return join_names([f"`{text}`" for text in sorted(texts)], _MOST_NAMED)
