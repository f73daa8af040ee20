"""The check `metadata`: tokenizer, special tokens and config are valid and match the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError, WeightctlError
from weightctl.families.configs import shortest
from weightctl.families.model import ARCHITECTURE
from weightctl.text.untyped import is_list, is_object, is_sequence, is_tuple
from weightctl.verify.checks.metadata.contradictions import check_file_type, find_contradictions
from weightctl.verify.checks.metadata.description import TokenizerPair, describe
from weightctl.verify.checks.metadata.tokenizer_settings import (
    compare_chat_templates,
    compare_flags,
    compare_pre_tokenizers,
    compare_special,
    compare_stated_parts,
)
from weightctl.verify.checks.metadata.tokens import (
    compare_merges,
    compare_scores,
    compare_tokens,
    compare_types,
)
from weightctl.verify.compare.configs import find_differences, note_lost_window
from weightctl.verify.figures import MetadataFigures
from weightctl.verify.results import Findings, Result
from weightctl.verify.run.prompt import TEXT
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightctl.families import RecognizedModel
    from weightctl.translate.tokenizer.encoding import TokenEncoder
    from weightctl.verify.checks.metadata.description import Description
    from weightctl.verify.request import Request, Subject
    from weightctl.weights.metadata import MetadataValue

# Keys of config.json that contain one of these texts are not compared here: they concern training
# or tools, or are compared elsewhere.
_NOT_OF_THE_MODEL = (
    "dropout", "initializer", "_token_id", "id2label", "label2id", "loss_coef", "quantization",
    "pretraining_tp", "version", "use_cache", "output_", "return_dict", "torchscript", "gradient",
)  # fmt: skip
_DEEPEST = 8
__all__ = ["check"]

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
    checkpoint = request.subject.checkpoint
    # If differences are only listed, the checkpoint is not judged by itself.
    found = Findings()
    if not request.compare:
        find_contradictions(found, own, checkpoint)
    other = None if request.reference is None else describe(request.reference)
    header = header_of(request.subject.stored)
    if own.is_gguf and not request.compare:
        reference = header_of(request.reference.stored) if other and request.reference else None
        check_file_type(found, header, reference)
    is_compared = request.reference is not None
    if request.reference is not None:
        mismatch = request.mismatch
        if mismatch is not None and mismatch.is_of_models:
            is_compared = False
            found.notes.append(f"metadata was not compared: {mismatch.short}")
        elif other is None:
            is_compared = False
            found.notes.append("metadata was not compared: the reference has none")
        else:
            _compare(found, request.subject, request.reference, own, other)
    return Result(
        problems=tuple(found.problems),
        figures=MetadataFigures(
            tokens=0 if own.tokenizer is None else len(own.tokenizer.tokens),
            tokenizer="" if own.tokenizer is None else own.tokenizer.model,
            is_compared=is_compared,
        ),
        notes=tuple(found.notes),
    )


def _compare(
    found: Findings, subject: Subject, reference: Subject, own: Description, other: Description
) -> None:
    named = {problem.where for problem in found.problems}
    made = Findings()
    one, two = subject.checkpoint, reference.checkpoint
    known = None
    if one is not None and two is not None:
        known = one
        compare_configs(made, one, two)
    compare_other_keys(made, own, other, known)
    _compare_tokenizers(made, subject, reference, own, other)
    # A key that contradicts its own checkpoint is already reported, and not repeated.
    found.problems += [problem for problem in made.problems if problem.where not in named]
    found.notes += made.notes


def _compare_tokenizers(
    found: Findings, subject: Subject, reference: Subject, own: Description, other: Description
) -> None:
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
        _judge_parts(found, parts, pair, subject, reference)


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


def _judge_parts(
    found: Findings, parts: Sequence[str], pair: TokenizerPair, subject: Subject, reference: Subject
) -> None:
    """Add a problem if the two tokenizers encode or decode a test text differently, else a note.

    `parts` are the parts of tokenizer.json that differ.
    """
    text = f"tokenizer.json differs from the reference in {', '.join(parts)}"
    try:
        encoders = subject.encoder, reference.encoder
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
