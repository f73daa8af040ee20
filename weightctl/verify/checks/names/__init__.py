"""The check `names`: the tensors are those that the family and the config require."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.errors import (
    ArchitectureError,
    TokenizerError,
    UnknownArchitectureError,
    WeightctlError,
)
from weightctl.families.configs import MODEL_TYPE
from weightctl.families.diffusion import find_diffusion, recognize_diffusion
from weightctl.families.matching import EMBEDDING_WEIGHT
from weightctl.families.nearest import describe_nearest
from weightctl.formats.huggingface import CONFIG, config
from weightctl.storage.files import exists, is_directory
from weightctl.text.folding import group_alike, mask_numbers
from weightctl.text.untyped import is_list, is_object, is_sequence
from weightctl.text.wording import join_names, pluralize
from weightctl.translate.tokenizer.directory import from_directory
from weightctl.translate.tokenizer.files import open_files
from weightctl.verify.checks.names.fit import (
    check_lost_mtp,
    check_tied,
    explain_misfit,
    find_corrections,
    find_family,
    list_misfits,
    measure_fit,
    note_tying,
)
from weightctl.verify.compare.configs import find_spelling
from weightctl.verify.compare.mismatch import find_prefix
from weightctl.verify.figures import NamesFigures
from weightctl.verify.results import (
    LISTED_APART,
    Explanation,
    Findings,
    Problem,
    Result,
    keep_first,
)
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.families import RecognizedModel
    from weightctl.families.config_keys import NamingConvention
    from weightctl.translate.tokenizer.files import TokenizerFiles
    from weightctl.verify.checks.names.fit import Fit
    from weightctl.verify.request import Request
    from weightctl.verify.subject import Subject

_PREFIX = "tokenizer.ggml."
_TOKENS = f"{_PREFIX}tokens"
_BESIDE = (f"{_PREFIX}token_type", f"{_PREFIX}scores")
_KEY = re.compile(r"`([^`]+)`")
_MOST_NAMED = 3
_WITH_CONFIG = {"safetensors", "pytorch"}
_FEW_EXAMPLES = 2
# If fewer than this fraction of the expected tensors exist, the checkpoint may be renamed as a
# whole.
_COMMON = 0.5


def check(request: Request) -> Result:
    """Compare the names and shapes of a checkpoint's tensors with those that its config requires.

    If the family is unknown, the check is skipped, since the config does not determine the tensors.
    """
    subject = request.subject
    if not header_of(subject.stored).tensors:
        return Result(skipped="there are no tensors")
    request.tell("comparing names", 0)
    checkpoint, refusal = subject.checkpoint, subject.refusal
    if checkpoint is not None:
        try:
            return _check_known(request, checkpoint)
        except WeightctlError as error:
            refusal = error
    if checkpoint is None and find_diffusion(header_of(subject.weights)) is not None:
        return _check_diffusion(subject)
    if _lacks_config(subject) and _find_nearest(subject):
        text = f"{CONFIG} is missing; without it programs cannot run the tensors"
        hint = "copy it from the original"
        return Result(problems=(Problem(where=subject.path, text=text, hint=hint),))
    if refusal is None or (subject.is_of_unknown_family and not _has_bad_config(subject, refusal)):
        return Result(skipped=_explain_skip(subject, refusal))
    return _check_refused(subject, refusal)


def _check_known(request: Request, checkpoint: RecognizedModel) -> Result:
    fit = measure_fit(checkpoint)
    if problem := _explain_whole(request, checkpoint, fit):
        return Result(problems=(problem,), figures=_make_figures(checkpoint, fit))
    counts = compare_counts(checkpoint, fit)
    problems = list_misfits(checkpoint, fit)
    return Result(
        problems=(
            *fold_alike(problems),
            *check_lost_mtp(checkpoint),
            *check_tied(checkpoint),
            *counts.problems,
        ),
        figures=_make_figures(checkpoint, fit),
        notes=(*note_tying(checkpoint), *counts.notes, *_note_unused(checkpoint)),
    )


def _check_diffusion(subject: Subject) -> Result:
    """Report tensors that are missing in, or not a part of, a diffusion transformer."""
    try:
        found = recognize_diffusion(subject.weights)
        if found is not None and not found.problems:
            found.make_config()
    except ArchitectureError as error:
        return Result(problems=(Problem(where=subject.path, text=error.message),))
    if found is None:
        return Result(skipped="the family is unknown")
    texts = [
        *found.problems,
        *(f"`{name}` is not a part of {found.name}" for name in found.unexpected),
    ]
    parts = [_split_key(text) for text in texts]
    return Result(
        problems=fold_alike(Problem(where=key, text=text) for key, text in parts),
        figures=NamesFigures(
            family=found.name,
            layers=found.layers,
            expected=len(found.tensors) + len(found.problems),
            found=len(found.tensors),
        ),
    )


def _make_figures(checkpoint: RecognizedModel, fit: Fit) -> NamesFigures:
    return NamesFigures(
        family=checkpoint.family.name,
        layers=checkpoint.config.layers,
        expected=fit.expected,
        found=len(checkpoint.tensors),
    )


def _explain_whole(request: Request, checkpoint: RecognizedModel, fit: Fit) -> Problem | None:
    """Return a single problem if this is one rank's file or a renamed checkpoint; otherwise None.

    Such a checkpoint would otherwise have a problem for nearly every tensor.
    """
    subject, mismatch = request.subject, request.mismatch
    if not fit.misshaped and not fit.missing:
        return None
    if mismatch is not None and mismatch.is_of_names:
        return mismatch.problem
    if whole := subject.whole:
        text = f"is one rank's file, not a whole model; the whole checkpoint is `{whole}`"
        cause = Explanation("one_rank", "the tensors are split among several ranks")
        return Problem(where=subject.path, text=text, cause=cause)
    if len(checkpoint.tensors) >= _COMMON * fit.expected or len(fit.unexpected) < len(fit.missing):
        return None
    wanted = {each.name for each in fit.missing}
    names = [name for name in fit.unexpected if name not in wanted]
    prefix = find_prefix(names, wanted)
    found = sum(name.removeprefix(prefix) in wanted for name in names)
    examples = join_names([f"`{name}`" for name in names], _FEW_EXAMPLES)
    text = (
        f"{len(fit.missing)} of {pluralize(fit.expected, 'tensor')} of {checkpoint.family.name} "
        f"are missing, and {len(names)} tensors have other names: {examples}"
    )
    if prefix and found >= _COMMON * len(wanted):
        text += f"; without the prefix `{prefix}` {found} of these names are right"
    cause = Explanation("renamed", "the tensors were renamed")
    return Problem(where=subject.path, text=text, cause=cause)


def _note_unused(checkpoint: RecognizedModel) -> list[str]:
    """Return a note on tensors that the text model does not have, if there are any."""
    names = checkpoint.beside
    if not names:
        return []
    shown = join_names([f"`{name}`" for name in names], _MOST_NAMED)
    return [f"tensors of towers or training heads, which did not run: {shown}"]


def _config_beside(file: str) -> str:
    return os.path.join(os.path.dirname(file), CONFIG)


def _has_bad_config(subject: Subject, refusal: WeightctlError) -> bool:
    """Whether a config.json exists and states a known family, but was refused.

    `refusal` is the error of recognizing the model.
    """
    files = header_of(subject.stored).files
    path = _config_beside(files[0]) if files else ""
    return exists(path) and not isinstance(refusal, UnknownArchitectureError)


def _lacks_config(subject: Subject) -> bool:
    """Whether the path is a directory that should have a config.json, but does not.

    A path to a single file does not require one.
    """
    header = header_of(subject.stored)
    if header.format not in _WITH_CONFIG or not is_directory(subject.path):
        return False
    return not exists(_config_beside(header.files[0]))


def _find_nearest(subject: Subject) -> str:
    header = header_of(subject.stored)
    convention: NamingConvention = "gguf" if header.format == "gguf" else "hugging_face"
    return describe_nearest(header.tensors.values(), convention, metadata=header.metadata)


def _explain_skip(subject: Subject, refusal: WeightctlError | None) -> str:
    """Return the reason why the model is unknown, and the nearest supported family."""
    reason = "the family is unknown" if refusal is None else refusal.message
    near = _find_nearest(subject)
    if refusal is not None and isinstance(refusal, UnknownArchitectureError):
        near = refusal.hint
    return f"{reason}; {near}" if near else reason


def _check_refused(subject: Subject, refusal: WeightctlError) -> Result:
    """Return why a model of a known family cannot be built, and possible corrections."""
    weights = subject.weights
    header = header_of(weights)
    document = None if header.format == "gguf" else config(header)
    family = find_family(weights, document or {})
    fitting = [] if family is None else find_corrections(weights, family, document, None)
    file = header.files[0] if header.files else subject.path
    path, key, text = _split_message(refusal.message, file)
    if fitting and key != fitting[0].key:
        key, text = fitting[0].key, f"`{key}` {text}" if key else text
    elif not fitting and refusal.hint:
        text = f"{text}; {refusal.hint}"
    problem = Problem(where=key or path, text=text, cause=explain_misfit(fitting))
    return Result(problems=(problem,))


def _split_message(message: str, file: str) -> tuple[str, str, str]:
    """Split an error message into the file and the key that it is about, and the remaining text.

    The key is empty if the message does not begin with one.
    """
    for path in (file, _config_beside(file)):
        text = message.removeprefix(f"{path}: ")
        if text != message:
            return path, *_split_key(text)
    return file, "", message


def _split_key(text: str) -> tuple[str, str]:
    """Split a text into the name that it begins with, empty without one, and the rest."""
    key = _KEY.match(text)
    return (key[1], text[key.end() :].strip()) if key else ("", text)


def fold_alike(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Join problems that differ only in layer and expert numbers.

    If more than `MOST_NAMED` remain, the last one counts those that are left out.
    """
    made: list[Problem] = []
    for same in group_alike(problems, _kind_of):
        made += same if len(same) <= LISTED_APART else [_fold(same)]
    return tuple(keep_first(made, "{} more problems of these kinds are not named"))


def _kind_of(problem: Problem) -> tuple[str, str, Explanation | None]:
    """Return the key by which problems of several layers are joined: the text without numbers."""
    return mask_numbers(problem.where), mask_numbers(problem.text), problem.cause


def _fold(same: list[Problem]) -> Problem:
    first, last = same[0], same[-1]
    text = f"{first.text}; {len(same) - 1} more tensors have this problem, up to `{last.where}`"
    return replace(first, text=text)


def compare_counts(checkpoint: RecognizedModel, fit: Fit) -> Findings:
    """Compare the token counts of the tokenizer, the config and the embedding of a checkpoint."""
    found = Findings()
    _check_rows(found, checkpoint, fit)
    if checkpoint.convention == "gguf":
        _check_metadata(found, checkpoint)
        return found
    directory = os.path.dirname(checkpoint.where)
    try:
        files = open_files(directory)
    except TokenizerError as error:
        found.add(directory, _show_error(error))
        return found
    try:
        count, added = _count_tokens(files, str(checkpoint.document.get(MODEL_TYPE)))
    except TokenizerError as error:
        found.notes.append(f"the tokens were not counted: {_show_error(error)}")
        return found
    rows = checkpoint.config.vocabulary
    if count > rows:
        where = files.path("tokenizer.json") if files.tokenizer is not None else directory
        text = (
            f"the tokenizer has {count} tokens, and the embedding has {rows} rows; they may "
            "be of different models"
        )
        found.add(where, text)
    elif added > rows:
        note = (
            f"the tokenizer has added tokens up to {added - 1}, and the embedding has {rows} "
            f"rows; the model cannot run on tokens from {rows} on"
        )
        found.notes.append(note)
    return found


def _show_error(error: TokenizerError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _check_rows(found: Findings, checkpoint: RecognizedModel, fit: Fit) -> None:
    """Add a problem for each tensor with more rows than tokens.

    Tensors with fewer rows are reported as misshaped.
    """
    count = checkpoint.config.vocabulary
    for stored in fit.padded:
        key, rows = find_spelling(checkpoint, "vocabulary").key, stored.shape[0]
        cause = None
        if checkpoint.convention == "hugging_face":
            cause = Explanation("config", f"`{key}` is {count}, and {rows} would fit")
        found.add(stored.name, f"has {rows} rows, and there are {count} tokens", cause)


def _check_metadata(found: Findings, checkpoint: RecognizedModel) -> None:
    """Add a problem for each GGUF list of tokens that does not have the length of the others.

    llama.cpp requires that the vocabulary has as many tokens as the embedding has rows.
    """
    metadata = header_of(checkpoint.tree).metadata
    value = metadata.get(_TOKENS)
    if value is None or not is_sequence(value.content):
        return
    count, rows = len(value.content), checkpoint.config.vocabulary
    if count != rows and EMBEDDING_WEIGHT in checkpoint.tensors:
        found.add(
            _TOKENS,
            f"there are {count} tokens, and the embedding has {rows} rows; llama.cpp refuses such "
            "files",
        )
    for key in _BESIDE:
        beside = metadata.get(key)
        if beside is not None and is_sequence(beside.content) and len(beside.content) != count:
            found.add(key, f"has {len(beside.content)} elements for {count} tokens")


def _count_tokens(files: TokenizerFiles, model_type: str) -> tuple[int, int]:
    """Return the number of a tokenizer's own tokens, and the largest id of an added token plus 1.

    Each is 0 if there are none of these tokens. Raises `TokenizerError` if a file is damaged.
    """
    document = files.tokenizer
    if document is None:
        found = from_directory(files.directory, 0, model_type)
        return (0 if found is None else len(found.tokens)), 0
    model: Any = document.get("model")
    words: Any = model.get("vocab") if is_object(model) else None
    count = _end_of_ids(words.values()) if is_object(words) else len(words) if is_list(words) else 0
    added: Any = document.get("added_tokens")
    tokens: list[Any] = added if is_list(added) else []
    return count, _end_of_ids(token.get("id") for token in tokens if is_object(token))


def _end_of_ids(ids: Any) -> int:
    return 1 + max((each for each in ids if type(each) is int), default=-1)
