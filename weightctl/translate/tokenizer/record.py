"""The record of a model's tokenizer in the terms of GGUF, and its conversion to and from metadata.

Names and types are those of the GGUF specification and of llama.cpp (`llama-vocab.cpp`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_sequence
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Hugging Face's names for the WORD in `tokenizer.ggml.WORD_token_id`, in llama.cpp's order.
WORDS = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
}
_T = TypeVar("_T", str, int)
_PREFIX = "tokenizer.ggml."
_ENDS = "eos_token_ids"
_REMAINDER = "tokenizer.weightctl.hugging_face"
_TEMPLATE = "tokenizer.chat_template"
_TEMPLATE_NAMES = "tokenizer.chat_templates"
# A missing id is written as -1, in any integer type.
_NONE = {-1, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF}
# Words that older files use, and their current names.
_OLD_WORDS = {"separator": "seperator"}
_HINT = (
    "a faulty tool wrote the file; to convert only its tensors, use --names keep "
    '(names="keep" in Python)'
)


class TokenType(IntEnum):
    """The type of a token (ggml's `llama_token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Some tools write 0 for an unknown type.
_TYPES = frozenset({0, *map(int, TokenType)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """A tokenizer, in terms that both naming conventions can express.

    `model` is `tokenizer.ggml.model`: "gpt2" (byte-level BPE), "llama" (SentencePiece's BPE with
    scores), "gemma4" (SentencePiece's BPE with merges), "whitespace" (BPE of words), "bert"
    (WordPiece), "t5" (unigram), "rwkv" (the longest token), "plamo2" (the tokens with the best
    scores together). `pre` is `tokenizer.ggml.pre`. `tokens` are spelled as in GGUF, and `types`
    are their `TokenType`s; `merges` are "left right". `special` has the ids of `bos`, `eos`,
    `unknown`, `seperator`, `padding`, `cls`, `mask`, `eot` ...: the words of the keys
    `tokenizer.ggml.WORD_token_id`. `ends` are all ids that end generation, in order, if there are
    more than the `eos` of `special`. `flags` are `add_bos_token`, `add_space_prefix` ...: the keys
    `tokenizer.ggml.FLAG`. The default template in `chat_templates` has the name "".
    `token_type_count` is the number of segment types of the model; `charsmap` is SentencePiece's
    compiled normalizer; `remainder` has what only Hugging Face's files can express (see
    `directory.py`). `notes` describe where llama.cpp treats text differently from the files that
    the tokenizer was read from.
    """

    model: str
    pre: str | None = None
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...] | None = None
    merges: tuple[str, ...] | None = None
    special: Mapping[str, int] = field(default_factory=dict[str, int])
    ends: tuple[int, ...] = ()
    flags: Mapping[str, bool] = field(default_factory=dict[str, bool])
    chat_templates: Mapping[str, str] = field(default_factory=dict[str, str])
    token_type_count: int | None = None
    charsmap: bytes | None = None
    remainder: str | None = None
    notes: tuple[str, ...] = ()

    def first(self, count: int) -> Tokenizer:
        """Return the tokenizer with only its first `count` tokens."""
        return replace(
            self,
            tokens=self.tokens[:count],
            types=self.types[:count],
            scores=None if self.scores is None else self.scores[:count],
            special={word: token for word, token in self.special.items() if token < count},
            ends=tuple(token for token in self.ends if token < count),
        )


def from_metadata(metadata: Mapping[str, MetadataValue], where: str) -> Tokenizer | None:
    """Return the tokenizer in a GGUF file's metadata; None if it has none.

    `where` names the file in errors. Raises `TokenizerError` for values that contradict each other.
    """
    model = metadata.get(f"{_PREFIX}model")
    if model is None or f"{_PREFIX}tokens" not in metadata:
        return None
    tokens = _strings(metadata, "tokens", where)
    if not tokens:
        raise TokenizerError(f"{where}: `{_PREFIX}tokens` is empty", hint=_HINT)
    return Tokenizer(
        model=_one(model, str, "model", where),
        pre=_optional(metadata, "pre", str, where),
        tokens=tokens,
        types=_types(metadata, len(tokens), where),
        scores=_scores(metadata, len(tokens), where),
        merges=_strings(metadata, "merges", where) if f"{_PREFIX}merges" in metadata else None,
        special=_special(metadata, len(tokens), where),
        ends=_ends(metadata, len(tokens), where),
        flags={
            key.removeprefix(_PREFIX): value.content
            for key, value in metadata.items()
            if key.startswith(_PREFIX) and isinstance(value.content, bool)
        },
        chat_templates=_templates(metadata),
        token_type_count=_optional(metadata, "token_type_count", int, where),
        charsmap=_charsmap(metadata, where),
        remainder=_remainder(metadata),
    )


def to_metadata(tokenizer: Tokenizer) -> dict[str, MetadataValue]:
    """Return the metadata of GGUF for a tokenizer, in the order of llama.cpp's tools."""
    made = {"model": MetadataValue("string", tokenizer.model)}
    if tokenizer.pre is not None:
        made["pre"] = MetadataValue("string", tokenizer.pre)
    if tokenizer.token_type_count is not None:
        made["token_type_count"] = MetadataValue("u32", tokenizer.token_type_count)
    made["tokens"] = MetadataValue("array[string]", list(tokenizer.tokens))
    if tokenizer.scores is not None:
        made["scores"] = MetadataValue("array[f32]", list(tokenizer.scores))
    made["token_type"] = MetadataValue("array[i32]", list(map(int, tokenizer.types)))
    if tokenizer.merges is not None:
        made["merges"] = MetadataValue("array[string]", list(tokenizer.merges))
    if tokenizer.charsmap is not None:
        made["precompiled_charsmap"] = MetadataValue("array[u8]", list(tokenizer.charsmap))
    for word, token in tokenizer.special.items():
        made[f"{word}_token_id"] = MetadataValue("u32", token)
    if tokenizer.ends:  # not read by llama.cpp, but by other programs
        made[_ENDS] = MetadataValue("array[i32]", list(tokenizer.ends))
    for flag, value in tokenizer.flags.items():
        made[flag] = MetadataValue("bool", value)
    values = {f"{_PREFIX}{key}": value for key, value in made.items()}
    values |= _as_values(tokenizer.chat_templates)
    if tokenizer.remainder is not None:
        values[_REMAINDER] = MetadataValue("string", tokenizer.remainder)
    return values


def _as_values(templates: Mapping[str, str]) -> dict[str, MetadataValue]:
    named = {name: template for name, template in templates.items() if name}
    made = {f"{_TEMPLATE}.{name}": MetadataValue("string", text) for name, text in named.items()}
    if named:
        made[_TEMPLATE_NAMES] = MetadataValue("array[string]", list(named))
    if "" in templates:
        made[_TEMPLATE] = MetadataValue("string", templates[""])
    return made


def _templates(metadata: Mapping[str, MetadataValue]) -> dict[str, str]:
    return {
        key.removeprefix(_TEMPLATE).removeprefix("."): value.content
        for key, value in metadata.items()
        if (key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")) and isinstance(value.content, str)
    }


def _remainder(metadata: Mapping[str, MetadataValue]) -> str | None:
    value = metadata.get(_REMAINDER)
    return value.content if value is not None and isinstance(value.content, str) else None


def _special(metadata: Mapping[str, MetadataValue], count: int, where: str) -> dict[str, int]:
    made: dict[str, int] = {}
    for key, value in metadata.items():
        if not (key.startswith(_PREFIX) and key.endswith("_token_id")):
            continue
        token = _one(value, int, key.removeprefix(_PREFIX), where)
        if token in _NONE:
            continue
        if not 0 <= token < count:
            raise TokenizerError(
                f"{where}: `{key}` is token id {token}, but the vocabulary has only {count} tokens",
                hint=_HINT,
            )
        word = key.removeprefix(_PREFIX).removesuffix("_token_id")
        made.setdefault(_OLD_WORDS.get(word, word), token)
    return made


def _ends(metadata: Mapping[str, MetadataValue], count: int, where: str) -> tuple[int, ...]:
    key = f"{_PREFIX}{_ENDS}"
    if key not in metadata:
        return ()
    ends = _array(metadata[key], key, where)
    if not {*map(type, ends)} <= {int}:  # checked first, because lists are not hashable
        raise TokenizerError(f"{where}: `{key}` has a value that is not a token id", hint=_HINT)
    return tuple(token for token in dict.fromkeys(ends) if 0 <= token < count)


def _types(metadata: Mapping[str, MetadataValue], count: int, where: str) -> tuple[int, ...]:
    key = f"{_PREFIX}token_type"
    if key not in metadata:
        return (int(TokenType.NORMAL),) * count
    types = tuple(_array(metadata[key], key, where))
    _check_count(types, count, key, where)
    if not set(map(type, types)) <= {int} or not {*types} <= _TYPES:
        strange = next(each for each in types if type(each) is not int or each not in _TYPES)
        raise TokenizerError(
            f"{where}: `{key}` has the value {strange!r:.200}, which is not a token type",
            hint=_HINT,
        )
    return types


def _scores(
    metadata: Mapping[str, MetadataValue], count: int, where: str
) -> tuple[float, ...] | None:
    key = f"{_PREFIX}scores"
    if key not in metadata:
        return None
    scores = tuple(_array(metadata[key], key, where))
    _check_count(scores, count, key, where)
    if not all(isinstance(score, float) for score in scores):
        raise TokenizerError(f"{where}: `{key}` has a value that is not a float", hint=_HINT)
    return scores


def _charsmap(metadata: Mapping[str, MetadataValue], where: str) -> bytes | None:
    key = f"{_PREFIX}precompiled_charsmap"
    if key not in metadata:
        return None
    content = list(_array(metadata[key], key, where))
    if not all(isinstance(each, int) for each in content):
        raise TokenizerError(f"{where}: `{key}` has a value that is not a byte", hint=_HINT)
    return bytes(each & 0xFF for each in content)  # some tools write it as i8


def _strings(metadata: Mapping[str, MetadataValue], name: str, where: str) -> tuple[str, ...]:
    key = f"{_PREFIX}{name}"
    strings = tuple(_array(metadata[key], key, where))
    if not {*map(type, strings)} <= {str}:
        raise TokenizerError(f"{where}: `{key}` has a value that is not a string", hint=_HINT)
    return strings


def _array(value: MetadataValue, key: str, where: str) -> Sequence[Any]:
    if not is_sequence(value.content):
        raise TokenizerError(f"{where}: `{key}` is a {value.type}, not an array", hint=_HINT)
    return value.content[:]  # decodes an array of a file at once


def _check_count(found: Sequence[Any], count: int, key: str, where: str) -> None:
    if len(found) != count:
        raise TokenizerError(
            f"{where}: `{key}` has {len(found)} elements, but the vocabulary has {count} tokens",
            hint=_HINT,
        )


def _optional(
    metadata: Mapping[str, MetadataValue], name: str, kind: type[_T], where: str
) -> _T | None:
    value = metadata.get(f"{_PREFIX}{name}")
    return None if value is None else _one(value, kind, name, where)


def _one(value: MetadataValue, kind: type[_T], name: str, where: str) -> _T:
    if not isinstance(value.content, kind) or isinstance(value.content, bool):
        raise TokenizerError(
            f"{where}: `{_PREFIX}{name}` has the wrong type {value.type}: its value is "
            f"{value.content!r:.200}",
            hint=_HINT,
        )
    return value.content
