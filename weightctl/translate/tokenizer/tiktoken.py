"""Byte-level BPE in files with the ranks of tokens: those of tiktoken, and Mistral's tekken.json.

A rank is the place of a token in the order of merges, and its id. Such a file has neither merges
nor the rule that splits text: which models have it says the rule. Sources: OpenAI's `tiktoken`,
`mistral_common`'s `tekken.py`, and the tokenizer classes that the models are distributed with.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import TokenizerError
from weightctl.text.byte_level import to_byte_level
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.added import MAX_TOKENS, padding, read_added
from weightctl.translate.tokenizer.files import KEEP_HINT, TEKKEN
from weightctl.translate.tokenizer.record import Tokenizer, TokenType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.translate.tokenizer.files import TokenizerFiles

_BYTES = 256


class RanksFile(NamedTuple):
    """The tokens after those with ranks, and the pre-tokenizer of a model, by the file's name.

    `special` are their texts, and `filler` is the text of each token up to `least` special tokens
    that the config does not name, with the place of `{}` for its number: its id if `filler_is_id`.
    `ends` are the texts of the tokens at the beginning and the end of a text.
    """

    name: str
    pre: str
    model_types: tuple[str, ...] = ()
    special: tuple[str, ...] = ()
    least: int = 0
    filler: str = ""
    filler_is_id: bool = False
    ends: tuple[str, str] = ("", "")


# The last row for a name and a type of model applies; without types, a row is for all models.
RANKS_FILES = (
    # Qwen's `tokenization_qwen.py`
    RanksFile(
        "qwen.tiktoken", "qwen2", special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        least=208, filler="<|extra_{}|>", ends=("", "<|endoftext|>"),
    ),
    # Hunyuan's `tokenization_hy.py`, which splits text as Qwen's, and composes it, too
    RanksFile(
        "hy.tiktoken", "qwen2",
        special=("<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>"), least=210,
        filler="<|extra_{}|>", ends=("<|bos|>", "<|eos|>"),
    ),
    # Kimi's `tokenization_kimi.py`
    RanksFile(
        "tiktoken.model", "kimi-k2", least=256, filler="<|reserved_token_{}|>", filler_is_id=True,
        ends=("[BOS]", "[EOS]"),
    ),
    # GLM-4's `tokenization_chatglm.py`
    RanksFile("tokenizer.model", "chatglm-bpe", ("chatglm",), ends=("", "<|endoftext|>")),
    # Meta's `tokenizer.py` of Llama 3
    RanksFile(
        "tokenizer.model", "llama-bpe", ("llama",),
        special=(
            "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
            "<|reserved_special_token_1|>", "<|reserved_special_token_2|>",
            "<|reserved_special_token_3|>", "<|start_header_id|>", "<|end_header_id|>",
            "<|reserved_special_token_4|>", "<|eot_id|>",
        ),
        least=256, filler="<|reserved_special_token_{}|>",
        ends=("<|begin_of_text|>", "<|end_of_text|>"),
    ),
)  # fmt: skip
# The special tokens of the first tekken.json, which does not list them (`mistral_common`).
_TEKKEN_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
_TEKKEN_FILLER = "<SPECIAL_{}>"
_TEKKEN_ROLES = {"bos": "<s>", "eos": "</s>", "unknown": "<unk>", "padding": "<pad>"}


def from_files(files: TokenizerFiles, model_type: str) -> Tokenizer:
    """Return the tokenizer of a directory's file with ranks.

    Raises `TokenizerError` if the file is damaged, or if the rule that splits text is not known for
    the type of model.
    """
    name = files.find_ranks()
    if name == TEKKEN:
        return _read_tekken(files)
    rows = [each for each in RANKS_FILES if each.name == name]
    known = [each for each in rows if not each.model_types or model_type in each.model_types]
    where = files.path(name)
    if not known:
        types = ", ".join(kind for each in rows for kind in each.model_types)
        raise TokenizerError(
            f"{where}: weightctl does not support this file for models of type `{model_type}`, "
            f"only for {types}: it does not state how the tokenizer splits text",
            hint=KEEP_HINT,
        )
    row = known[-1]
    words = order_ranks(read_ranks(files.data(name) or b"", where), where)
    special = _name_special(row, len(words), read_added(_added_of(files), where))
    tokens = (*words, *special)
    ids = {text: token for token, text in enumerate(tokens)}
    roles = zip(("bos", "eos"), row.ends, strict=True)
    return Tokenizer(
        model="gpt2",
        pre=row.pre,
        tokens=tokens,
        types=(*[int(TokenType.NORMAL)] * len(words), *[int(TokenType.CONTROL)] * len(special)),
        merges=tuple(derive_merges(words)),
        special={role: ids[text] for role, text in roles if text in ids},
    )


def _added_of(files: TokenizerFiles) -> dict[str, Any]:
    """Return the added tokens of tokenizer_config.json as tokenizer.json states them."""
    decoder = files.config.get("added_tokens_decoder")
    entries = decoder.items() if is_object(decoder) else ()
    return {
        "added_tokens": [
            {**entry, "id": int(token)}
            for token, entry in entries
            if is_object(entry) and token.isdecimal() and len(token) < len(str(MAX_TOKENS)) + 1
        ]
    }


def _name_special(
    row: RanksFile, first: int, added: Mapping[int, Mapping[str, Any]]
) -> Sequence[str]:
    """Return the texts of the tokens from the id `first` on."""
    count = max(row.least, len(row.special), max(added, default=-1) + 1 - first)
    texts: list[str] = []
    unnamed = 0
    for token in range(first, first + count):
        place = token - first
        if token in added:
            texts.append(str(added[token]["content"]))
        elif place < len(row.special):
            texts.append(row.special[place])
            unnamed += row.filler.format(unnamed) == row.special[place]
        elif row.filler and place < row.least:
            texts.append(row.filler.format(token if row.filler_is_id else unnamed))
            unnamed += 1
        else:
            texts.append(padding(token))
    return texts


def _read_tekken(files: TokenizerFiles) -> Tokenizer:
    where = files.path(TEKKEN)
    document = files.document(TEKKEN) or {}
    config, vocabulary = document.get("config"), document.get("vocab")
    if not is_object(config) or not is_list(vocabulary):
        raise TokenizerError(f"{where}: it has no `config` and `vocab`", hint=KEEP_HINT)
    size, reserved = config.get("default_vocab_size"), config.get("default_num_special_tokens")
    if type(size) is not int or type(reserved) is not int or not 0 <= reserved < size <= MAX_TOKENS:
        raise TokenizerError(f"{where}: its numbers of tokens are invalid", hint=KEEP_HINT)
    words: list[str] = []
    for rank, entry in enumerate(vocabulary[: size - reserved]):
        try:
            words.append(to_byte_level(b64decode(entry["token_bytes"], validate=True)))
        except (KeyError, TypeError, ValueError) as error:
            raise TokenizerError(f"{where}: the token of rank {rank} is not base64") from error
    stated = document.get("special_tokens")
    names = dict(enumerate(_TEKKEN_SPECIAL))
    if is_list(stated) and stated:
        names = {
            entry["rank"]: str(entry.get("token_str"))
            for entry in stated
            if is_object(entry) and type(entry.get("rank")) is int
        }
    special = [names.get(place, _TEKKEN_FILLER.format(place)) for place in range(reserved)]
    ids = {text: token for token, text in enumerate(special)}
    return Tokenizer(
        model="gpt2",
        pre="tekken",
        tokens=(*special, *words),
        types=(*[int(TokenType.CONTROL)] * reserved, *[int(TokenType.NORMAL)] * len(words)),
        merges=tuple(derive_merges(words)),
        special={role: ids[text] for role, text in _TEKKEN_ROLES.items() if text in ids},
        flags={"add_bos_token": True, "add_eos_token": False},
    )


def read_ranks(data: bytes, where: str) -> dict[str, int]:
    """Return the ranks of the tokens of a file of tiktoken, spelled as byte-level tokenizers do.

    A line has a token in base64 and its rank. Raises `TokenizerError`, which has the number of the
    line, for another line.
    """
    ranks: dict[str, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            # The file of multilingual Whisper models has an empty token, which is written as `=`.
            ranks[to_byte_level(b64decode(token))] = int(rank)
        except (ValueError, Base64Error) as error:
            raise TokenizerError(f"{where}: line {number} is not a token and a rank") from error
    return ranks


def order_ranks(ranks: Mapping[str, int], where: str) -> list[str]:
    """Return tokens in the order of their ranks.

    Raises `TokenizerError` if the ranks have gaps, or if a byte has no token.
    """
    words = sorted(ranks, key=ranks.__getitem__)
    if [ranks[word] for word in words] != [*range(len(words))]:
        raise TokenizerError(f"{where}: the ranks have gaps", hint=KEEP_HINT)
    missing = _BYTES - sum(len(word) == 1 for word in words)
    if missing:
        raise TokenizerError(f"{where}: {missing} bytes have no token", hint=KEEP_HINT)
    return words


def derive_merges(words: Sequence[str]) -> list[str]:
    """Return the merges of a byte-level tokenizer whose tokens are in the order of their merges.

    Each token of several characters is the result of one merge: of the two tokens that remain when
    the merges of all earlier tokens are applied to it.
    """
    ranks = {word: rank for rank, word in enumerate(words)}
    merges: list[str] = []
    for word, limit in ranks.items():
        parts = list(word)
        while len(parts) > 2:
            joined = [ranks.get(one + other, limit) for one, other in pairwise(parts)]
            best = min(range(len(joined)), key=joined.__getitem__)
            if joined[best] >= limit:
                break
            parts[best : best + 2] = ["".join(parts[best : best + 2])]
        if len(parts) == 2:
            merges.append(" ".join(parts))
    return merges
