"""The check `metadata`: tokenizer, special tokens and config are valid and match the reference."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from weightctl.dtype import ENCODINGS
from weightctl.errors import TokenizerError, WeightctlError
from weightctl.families.configs import shortest
from weightctl.families.model import ARCHITECTURE
from weightctl.plan.file_types import find_file_type, read_file_type
from weightctl.text.untyped import is_list, is_object, is_sequence, is_tuple
from weightctl.text.wording import percent
from weightctl.translate.tokenizer.record import TokenType
from weightctl.verify.checks.metadata.description import (
    TOKENIZER_KEYS,
    TokenizerPair,
    count_tokens,
    describe,
    show_token,
)
from weightctl.verify.checks.metadata.tokenizers import (
    DEFAULTS,
    check_chat_templates,
    compare_chat_templates,
    compare_flags,
    compare_merges,
    compare_pre_tokenizers,
    compare_scores,
    compare_special,
    compare_stated_parts,
    compare_tokens,
    compare_types,
)
from weightctl.verify.compare.configs import find_differences, find_spelling, note_lost_window
from weightctl.verify.figures import MetadataFigures
from weightctl.verify.results import Findings, Result
from weightctl.verify.run.prompt import TEXT
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightctl.families import RecognizedModel
    from weightctl.plan.file_types import FileType
    from weightctl.translate.tokenizer import Tokenizer
    from weightctl.translate.tokenizer.encoding import TokenEncoder
    from weightctl.verify.checks.metadata.description import Description
    from weightctl.verify.request import Request
    from weightctl.weights.info import Header
    from weightctl.weights.metadata import MetadataValue


# Keys of config.json that contain one of these texts are not compared here: they concern training
# or tools, or are compared elsewhere.
_NOT_OF_THE_MODEL = (
    "dropout", "initializer", "_token_id", "id2label", "label2id", "loss_coef", "quantization",
    "pretraining_tp", "version", "use_cache", "output_", "return_dict", "torchscript", "gradient",
)  # fmt: skip
_DEEPEST = 8
# The comparisons of two tokenizers; each problem names the entry that differs.
_COMPARISONS: tuple[Callable[[Findings, TokenizerPair], None], ...] = (
    compare_tokens,
    compare_types,
    compare_scores,
    compare_merges,
    compare_pre_tokenizers,
    compare_special,
    compare_flags,
    compare_chat_templates,
)
# A text with numbers, spaces, punctuation and several scripts, for which tokenizers have rules.
_PROBE = (
    f"{TEXT}\n\n  12345 6,789.01\t'tis don't WE'LL x_y=z; ÉCOLE e\u0301 naïve ﬁn 东京 Привет 🙂\n "
)


def check(request: Request) -> Result:
    """Compare a checkpoint's metadata with its tensors, and with the metadata of a reference.

    The checkpoints may have different naming conventions: what their metadata state about the model
    is compared. Differences that conversions always cause, or that only affect tools, are notes.
    """
    request.tell("comparing metadata", 0)
    own = describe(request.subject)
    if own is None:
        return Result(skipped="there is no config.json and no GGUF metadata")
    other = None if request.reference is None else describe(request.reference)
    # If differences are only listed, the checkpoint is not judged by itself.
    found = Findings()
    if not request.compare:
        find_contradictions(found, own)
        if own.is_gguf:
            check_file_type(found, own, other)
    is_compared = False
    if request.reference is not None:
        mismatch = request.mismatch
        if mismatch is not None and mismatch.is_of_models:
            found.notes.append(f"metadata was not compared: {mismatch.short}")
        elif other is None:
            found.notes.append("metadata was not compared: the reference has none")
        else:
            is_compared = True
            _compare(found, own, other)
    if not request.compare:
        check_chat_templates(found, own)
    return Result(
        problems=tuple(found.problems),
        figures=MetadataFigures(
            tokens=0 if own.tokenizer is None else len(own.tokenizer.tokens),
            tokenizer="" if own.tokenizer is None else own.tokenizer.model,
            is_compared=is_compared,
        ),
        notes=tuple(found.notes),
    )


def _compare(found: Findings, own: Description, other: Description) -> None:
    named = {problem.where for problem in found.problems}
    made = Findings()
    one, two = own.subject.checkpoint, other.subject.checkpoint
    if one is not None and two is not None:
        compare_configs(made, one, two)
    compare_other_keys(made, own, other, one if two is not None else None)
    _compare_tokenizers(made, own, other)
    # A key that contradicts its own checkpoint is already reported, and not repeated.
    found.problems += [problem for problem in made.problems if problem.where not in named]
    found.notes += made.notes


def _compare_tokenizers(found: Findings, own: Description, other: Description) -> None:
    pair = _pair_tokenizers(found, own, other)
    if pair is None:
        return
    if pair.tokenizer.model != pair.reference.model:
        found.add(
            own.place("model"),
            f"the tokenizer is `{pair.tokenizer.model}` here and `{pair.reference.model}` in "
            "the reference",
        )
        return
    for compare in _COMPARISONS:
        compare(found, pair)
    parts = compare_stated_parts(pair)
    if parts:
        _judge_parts(found, parts, pair)


def _pair_tokenizers(found: Findings, own: Description, other: Description) -> TokenizerPair | None:
    """Return both tokenizers, read in the same way; None if they cannot be compared.

    If at least one checkpoint has a tokenizer, None comes with a note or problem in `found`.
    """
    if own.tokenizer is not None and other.tokenizer is not None:
        return TokenizerPair(own, other, own.tokenizer, other.tokenizer)
    if not own.refusal and not other.refusal:
        if own.tokenizer is None and other.tokenizer is not None:
            text = "there is no tokenizer, and the reference has one"
            if own.is_gguf:
                found.add(own.where, text)
            else:  # a program may take the tokenizer from another directory
                found.notes.append(f"{own.where}: {text}")
        elif own.tokenizer is not None:
            found.notes.append("the tokenizer was not compared: the reference has none")
        return None
    if own.raw is not None and other.raw is not None:
        return TokenizerPair(own, other, own.raw, other.raw)
    why = own.refusal or f"that of the reference: {other.refusal}"
    found.notes.append(f"the tokenizer was not compared: {why}")
    return None


def _judge_parts(found: Findings, parts: Sequence[str], pair: TokenizerPair) -> None:
    """Add a problem if the two tokenizers encode or decode a test text differently, else a note.

    `parts` are the parts of tokenizer.json that differ.
    """
    text = f"tokenizer.json differs from the reference in {', '.join(parts)}"
    try:
        encoders = pair.own.subject.encoder, pair.other.subject.encoder
    except (TokenizerError, WeightctlError) as error:
        found.notes.append(f"{text}; the effect was not tested: {error.message}")
        return
    if encoders[0] is None or encoders[1] is None:
        found.notes.append(f"{text}; the effect was not tested")
        return
    ours, theirs = (_try_encoder(encoder) for encoder in encoders if encoder is not None)
    if ours == theirs:
        found.notes.append(f"{text}; a test text gives the same tokens")
    else:
        found.add(pair.own.place("tokens"), f"{text}, and a test text gives different tokens")


def _try_encoder(encoder: TokenEncoder) -> tuple[object, ...]:
    """Return an encoder's ids for the test text, the texts of these tokens, and added tokens."""
    ids = encoder.ids(_PROBE)
    shown = [encoder.text(token) for token in dict.fromkeys(ids)]
    return ids, shown, encoder.first, encoder.last


# Compares two configs: the fields of a known family, and the other keys one by one.


def compare_configs(found: Findings, own: RecognizedModel, other: RecognizedModel) -> None:
    """Compare the configs of two models of one family, also across naming conventions."""
    found.problems += [each.problem for each in find_differences(own, other, with_context=True)]
    if note := note_lost_window(own, other):
        found.notes.append(note)


def compare_other_keys(
    found: Findings, own: Description, other: Description, checkpoint: RecognizedModel | None
) -> None:
    """Compare the numeric values of config keys that are not fields of a known family.

    Nothing is compared if the naming conventions differ. If the family is known, differences are
    notes, since weightctl does not use these keys.
    """
    if own.convention != other.convention:
        return
    values, wanted = (_list_values(each, checkpoint) for each in (own, other))
    for key in values | wanted:
        if key not in values or key not in wanted:
            # Old and new spellings of config.json omit different keys.
            if own.is_gguf:
                has = "only in the reference" if key in wanted else "not in the reference"
                found.notes.append(f"`{key}` is {has}")
        elif values[key] != wanted[key]:
            text = f"is {_show(values[key])} here and {_show(wanted[key])} in the reference"
            if checkpoint is None:
                found.add(key, text)
            else:
                found.notes.append(f"`{key}` {text}; weightctl does not use this key")


def _list_values(description: Description, checkpoint: RecognizedModel | None) -> dict[str, Any]:
    if description.is_gguf:
        return dict(_list_of_metadata(description.metadata, checkpoint))
    read = set[str]()
    if checkpoint is not None:
        read = {key.hugging_face.rpartition(".")[2] for key in checkpoint.family.keys}
    return {
        path: number
        for path, number in _walk_leaves(description.config, "", 0)
        if path.rpartition(".")[2] not in read
        and not any(part in path for part in _NOT_OF_THE_MODEL)
    }


def _list_of_metadata(
    metadata: Mapping[str, MetadataValue], checkpoint: RecognizedModel | None
) -> Iterator[tuple[str, Any]]:
    if ARCHITECTURE not in metadata:
        return
    name = metadata[ARCHITECTURE].content
    read = set[str]()
    if checkpoint is not None:
        read = {key.gguf.format(arch=name) for key in checkpoint.family.keys}
    for key, value in metadata.items():
        if not key.startswith(f"{name}.") or key in read:
            continue
        content: Any = value.content
        if is_sequence(content):
            yield key, tuple(content[:])
        elif isinstance(content, int | float | str):
            yield key, content


def _walk_leaves(content: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the numeric values of a config with their paths; a list of numbers is one value."""
    if is_object(content) and depth < _DEEPEST:
        for key, value in content.items():
            yield from _walk_leaves(value, f"{path}.{key}" if path else key, depth + 1)
    elif is_list(content) and all(isinstance(each, int | float) for each in content):
        yield path, tuple(content)
    elif isinstance(content, int | float):
        yield path, content


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{shortest(value):g}"
    return f"a list of {len(value)} values" if is_tuple(value) else f"{value!s:.60}"


# Metadata that contradict other metadata or the tensors of the same checkpoint.


_KEY = "general.file_type"
# Tools may use another type for some matrices, but convert more than this fraction of the values.
_MOSTLY = 0.5
# The share of merged tokens that an extended vocabulary can have out of order.
_MOST_FALLS = 0.01


def check_file_type(found: Findings, own: Description, other: Description | None) -> None:
    """Compare `general.file_type` with the tensors, and with a reference of the same encodings.

    It is a problem if no matrix has the usual encoding of the file type, or if the reference has
    the same encodings and another file type. If most values have other encodings, which a tool may
    have chosen, it is a problem if there is a reference, and otherwise a note.
    """
    header = header_of(own.subject.stored)
    number = read_file_type(header.metadata)
    if number is None:
        return
    text = ""
    reference = None if other is None else header_of(other.subject.stored)
    wanted = None if reference is None else read_file_type(reference.metadata)
    if wanted not in {None, number} and reference is not None and _has_same(header, reference):
        here, there = _show_file_type(number), _show_file_type(wanted or 0)
        text = f"is {here} here and {there} in the reference, which has the same encodings"
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


def find_contradictions(found: Findings, description: Description) -> None:
    """Add the faults of a tokenizer or a config that can be detected without a reference.

    Faults that also occur in working models are notes.
    """
    checkpoint = description.subject.checkpoint
    if description.is_gguf:
        _check_ids_of_gguf(found, description)
        if description.refusal:
            found.add(_TOKENS, f"the tokenizer cannot be used: {description.refusal}")
        if description.tokenizer is not None:
            _check_types(found, description, description.tokenizer)
            _check_end(found, description, description.tokenizer)
    else:
        if checkpoint is not None:
            _check_ids_of_configs(found, description, checkpoint.config.vocabulary)
        if description.refusal:
            found.notes.append(f"the tokenizer cannot be stored in GGUF: {description.refusal}")
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


def _check_ids_of_configs(found: Findings, description: Description, rows: int) -> None:
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
    found.add(_TYPES, f"{state} is ordinary text, including the special tokens: {shown}")


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
