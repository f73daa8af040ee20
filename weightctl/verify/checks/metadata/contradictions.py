"""Finds metadata that contradicts other metadata or the tensors of the same checkpoint."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from weightctl.dtype import ENCODINGS
from weightctl.families.model import ARCHITECTURE
from weightctl.plan.file_types import find_file_type, read_file_type
from weightctl.text.untyped import is_list
from weightctl.text.wording import percent
from weightctl.translate.tokenizer.record import TokenType
from weightctl.verify.checks.metadata.description import TOKENIZER_KEYS, count_tokens, show_token
from weightctl.verify.checks.metadata.tokenizer_settings import DEFAULTS
from weightctl.verify.config_keys import find_spelling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.families import RecognizedModel
    from weightctl.plan.file_types import FileType
    from weightctl.translate.tokenizer import Tokenizer
    from weightctl.verify.checks.metadata.description import Description
    from weightctl.verify.results import Findings
    from weightctl.weights.info import Header


_KEY = "general.file_type"
# Tools may use another type for some matrices, but convert more than this fraction of the values.
_MOSTLY = 0.5
# The share of merged tokens that an extended vocabulary can have out of order.
_MOST_FALLS = 0.01


def check_file_type(found: Findings, header: Header, reference: Header | None) -> None:
    """Compare `general.file_type` with the tensors, and with a reference of the same encodings.

    It is a problem if no matrix has the usual encoding of the file type, or if the reference has
    the same encodings and another file type. If most values have other encodings, which a tool may
    have chosen, it is a problem if there is a reference, and otherwise a note.
    """
    number = read_file_type(header.metadata)
    if number is None:
        return
    text = ""
    wanted = None if reference is None else read_file_type(reference.metadata)
    if wanted not in {None, number} and reference is not None and _has_same(header, reference):
        own, other = _show_file_type(number), _show_file_type(wanted or 0)
        text = f"is {own} here and {other} in the reference, which has the same encodings"
    kind = find_file_type(number)
    sizes = Counter[str]() if kind is None else _count_values(header, kind)
    if kind is not None and sizes:
        total = sum(sizes.values())
        has_usual = any(sizes[name] for name in kind.usual)
        is_mostly = sum(sizes[name] for name in kind.allowed) > _MOSTLY * total
        (most, size), *_ = sizes.most_common(1)
        share = percent(size / total)
        mixed = f"is {_show_file_type(number)}, but {share} of the matrices' values are {most}"
        if not has_usual or (not is_mostly and reference is not None):
            text = mixed
        elif not is_mostly:
            found.notes.append(f"`{_KEY}` {mixed}")
    if text:
        found.add(_KEY, text)


def _count_values(header: Header, kind: FileType) -> Counter[str]:
    """Count the values in each encoding, in matrices that can have the file type's usual encoding.

    Matrices whose rows do not divide into its blocks get a fallback encoding, and are not counted.
    """
    block = max(ENCODINGS[name].block for name in kind.usual)
    sizes: Counter[str] = Counter()
    for info in header.tensors.values():
        if len(info.shape) > 1 and not info.shape[-1] % block:
            sizes[info.encoding.name] += info.size
    return sizes


def _has_same(header: Header, reference: Header) -> bool:
    """Whether all tensors have the encodings of the reference's tensors of the same names."""
    own, other = (
        {name: info.encoding.name for name, info in each.tensors.items()}
        for each in (header, reference)
    )
    return own == other


def _show_file_type(number: int) -> str:
    kind = find_file_type(number)
    return f"{number}" if kind is None else f"{number}, {kind.name}"


_TYPES, _TOKENS = f"{TOKENIZER_KEYS}token_type", f"{TOKENIZER_KEYS}tokens"
_EOS = f"{TOKENIZER_KEYS}eos_token_id"
# The values that tools store in place of an absent id: -1 in various integer types.
_NONE = {-1, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF}
# Ids that generation needs. Other ids, as for padding, may be outside the vocabulary.
_NEEDED = {"bos_token_id", "eos_token_id", "decoder_start_token_id"}


def find_contradictions(
    found: Findings, description: Description, checkpoint: RecognizedModel | None
) -> None:
    """Add the faults of a tokenizer or a config that can be detected without a reference.

    Faults that also occur in working models are notes.
    """
    if description.is_gguf:
        _check_ids_of_gguf(found, description)
        if description.refusal:
            found.add(_TOKENS, f"the tokenizer cannot be used: {description.refusal}")
    else:
        _check_ids_of_configs(found, description, checkpoint)
        if description.refusal:
            found.notes.append(f"the tokenizer cannot be stored in GGUF: {description.refusal}")
    if description.is_gguf and description.tokenizer is not None:
        _check_types(found, description, description.tokenizer)
        _check_end(found, description, description.tokenizer)
    if checkpoint is not None:
        if description.tokenizer is not None and getattr(checkpoint.config, "causal", False):
            _check_order(found, description, description.tokenizer)
        _check_context(found, checkpoint)


def _check_order(found: Findings, description: Description, tokenizer: Tokenizer) -> None:
    """Find byte-level BPE whose tokens do not have the order of the merges that make them.

    Trainers number tokens as they merge them, and so do all decoders known to us. A few exceptions
    are a note, since a vocabulary can be extended. Encoders like RoBERTa order by frequency.
    """
    if tokenizer.model != "gpt2":
        return
    ids = {text: token for token, text in enumerate(tokenizer.tokens)}
    merged = dict.fromkeys(merge.replace(" ", "", 1) for merge in tokenizer.merges or ())
    order = [ids[text] for text in merged if text in ids]
    falls = [after for before, after in pairwise(order) if after < before]
    if falls:
        text = (
            f"the ids of {len(falls):,} of {len(order):,} merged tokens are lower than that of the "
            f"merge before (such as token {show_token(tokenizer, falls[0])}): the tokens may be of "
            "another model, or in another order than the rows of the embedding"
        )
        if len(falls) > _MOST_FALLS * len(order):
            found.add(description.place("tokens"), text)
        else:
            found.notes.append(text)


def _check_ids_of_gguf(found: Findings, description: Description) -> None:
    count = count_tokens(description.metadata)
    for key, value in description.metadata.items():
        if not count or not (key.startswith(TOKENIZER_KEYS) and key.endswith("_token_id")):
            continue
        token: Any = value.content
        if isinstance(token, int) and token not in _NONE and not 0 <= token < count:
            found.add(key, f"is {token}, and there are {count:,} tokens")


def _check_ids_of_configs(
    found: Findings, description: Description, checkpoint: RecognizedModel | None
) -> None:
    if checkpoint is None:
        return
    rows = checkpoint.config.vocabulary
    documents = (
        ("config.json", description.text_config),
        ("generation_config.json", description.generation),
    )
    for name, document in documents:
        for key, content in document.items():
            if not key.endswith("_token_id"):
                continue
            for token in _find_beyond(content, rows):
                text = f"is {token} in {name}, and the embedding has {rows:,} rows"
                if key in _NEEDED:
                    found.add(key, text)
                else:
                    found.notes.append(f"`{key}` {text}")


def _find_beyond(content: Any, rows: int) -> Iterator[int]:
    for token in content if is_list(content) else [content]:
        if type(token) is int and token >= rows:
            yield token


def _check_types(found: Findings, description: Description, tokenizer: Tokenizer) -> None:
    """Add a problem if no token has a type, so that special tokens are read as ordinary text."""
    kinds = {*tokenizer.types}
    if not kinds <= {0, int(TokenType.NORMAL)}:
        return
    special = dict.fromkeys(tokenizer.special.values())
    if not special:
        return
    shown = ", ".join(show_token(tokenizer, token) for token in [*special][:3])
    state = (
        "says that every token"
        if _TYPES in description.metadata
        else "is missing, so that every token"
    )
    found.add(
        _TYPES,
        f"{state} is ordinary text, including the special tokens: {shown}",
    )


def _check_end(found: Findings, description: Description, tokenizer: Tokenizer) -> None:
    """Add a problem if the model has no end token, and llama.cpp's default is not a special token.

    Encoders do not need an end token.
    """
    architecture = description.metadata.get(ARCHITECTURE)
    is_encoder = architecture is None or "bert" in str(architecture.content)
    stated = description.metadata.get(_EOS)
    if is_encoder or stated is not None or tokenizer.model not in DEFAULTS:
        return
    token = DEFAULTS[tokenizer.model].get("eos")
    if token is None:
        return
    is_there = token < len(tokenizer.tokens)
    is_ordinary = is_there and tokenizer.types[token] in {0, int(TokenType.NORMAL)}
    if not is_there or is_ordinary:
        text = f"is missing; llama.cpp uses token {show_token(tokenizer, token)} instead"
        found.add(_EOS, text)


def _check_context(found: Findings, checkpoint: RecognizedModel) -> None:
    """Add a problem if the context is shorter than the original context of RoPE scaling."""
    scaling = getattr(checkpoint.config, "rope_scaling", None)
    context = checkpoint.config.context
    if scaling is not None and context < scaling.original_context:
        found.add(
            find_spelling(checkpoint, "context").key,
            f"is {context}, but its RoPE scaling extends a context of {scaling.original_context}",
        )
