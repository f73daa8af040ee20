"""Chooses the tokens to run models on: given tokens, a text, the built-in text, or random ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from weightctl.errors import ConversionError, TokenizerError
from weightctl.system.registry import name_install
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.translate.tokenizer.encoding import TokenEncoder
    from weightctl.verify.subject import Subject


WINDOW, MOST_WINDOWS = 256, 8
_SEED = 8
_SHOWN = 4
_TOKENS_HINT = "give token ids: --tokens 1,2,3"
# This text was written for weightctl, so that models have not memorized it. It is plain English on
# several subjects, and about as long as one window.
TEXT = """\
The harbour was quiet when the ferry came in, an hour later than the timetable had promised. Two \
men in yellow coats threw the ropes over the bollards, and the passengers went down the narrow \
bridge one after the other, each with a bag in either hand. Most of them had come for the market, \
which is held on the first Saturday of every month. Among them was a woman who had not been on the \
island since she was a child, and who looked around as if she had lost something.

To make the soup, cut three onions and a small piece of ginger, and fry them in butter until they \
are soft. Add the carrots, a litre of water and some salt, and let everything cook for twenty \
minutes. Then take the pot from the stove, because hot soup splashes, and blend it until it is \
smooth.

Light travels about three hundred thousand kilometres in a second, so that it takes a little more \
than eight minutes to reach us from the sun. What we see in the sky is therefore always the past. \
If a star went out tonight, nobody on Earth would know of it for years, and we would go on giving \
it a name, and finding our way home by it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Tokens in independent windows, int64[windows, positions].

    `mask` is true at tokens, and false at the padding of the last window. `source` describes where
    the tokens come from, for messages. `text_of` returns the text of a token, empty if unknown. If
    `is_text` is false, the tokens are random, and their perplexity has no meaning.
    """

    ids: NDArray[np.int64]
    mask: NDArray[np.bool_]
    source: str
    text_of: Callable[[int], str]
    is_text: bool = True
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return int(self.mask.sum())


def make_prompt(tokens: Sequence[int] | None, text: str | None, *subjects: Subject) -> Prompt:
    """Return the tokens to run models of known families on.

    These are `tokens`, or the tokens of `text`, or those of the built-in text if both are None. The
    first subject with a tokenizer encodes the text, and provides the texts of given tokens. If the
    built-in text cannot be encoded because no subject has a tokenizer, or because `tokenizers` is
    not installed, the tokens are random, with a fixed seed.

    Raises `ConversionError` if given tokens are not in the vocabulary, if the text has no tokens,
    or if a given text cannot be encoded. Raises `TokenizerError` if a tokenizer is
    damaged or belongs to another model.
    """
    if tokens is not None:
        return _prompt_of_tokens(tokens, subjects)
    if text is not None:
        _require_text(text)
    elif find_spec("tokenizers") is None:
        why = f"for the built-in text: {name_install('verify')}"
        return _draw_tokens(_require_known(subjects[-1]), why)
    chosen, encoder = _find_encoder(subjects)
    if encoder is not None:
        return _prompt_of_text(text, _require_known(chosen), encoder)
    if text is None:
        return _draw_tokens(_require_known(chosen), "there is no tokenizer")
    raise ConversionError(f"{chosen.path}: there is no tokenizer for the text", hint=_TOKENS_HINT)


def _prompt_of_tokens(tokens: Sequence[int], subjects: Sequence[Subject]) -> Prompt:
    checkpoint = _require_known(subjects[0])
    if not tokens:
        raise ConversionError("--tokens (tokens in Python) is empty", hint=_TOKENS_HINT)
    if strange := _name_unknown(tokens, checkpoint):
        raise ConversionError(
            f"the model does not have all of the given tokens: {strange}", hint=_TOKENS_HINT
        )
    try:
        encoder = None if find_spec("tokenizers") is None else _find_encoder(subjects)[1]
    except TokenizerError:  # the texts of tokens are optional
        encoder = None
    text_of = _show_nothing if encoder is None else encoder.text
    return _cut_windows(
        tokens, _find_length(checkpoint), "the tokens that were given", text_of=text_of
    )


def _prompt_of_text(
    given: str | None, checkpoint: RecognizedModel, encoder: TokenEncoder
) -> Prompt:
    ids = encoder.ids(TEXT if given is None else given)
    if not ids:
        raise ConversionError("the text has no tokens", hint="give a longer text")
    if strange := _name_unknown([*encoder.first, *ids, *encoder.last], checkpoint):
        raise TokenizerError(
            f"the model does not have all tokens of the tokenizer: {strange}",
            hint="check that the tokenizer belongs to this model",
        )
    source = "the built-in text" if given is None else "the text"
    around = (encoder.first, encoder.last)
    return _cut_windows(ids, _find_length(checkpoint), source, around, encoder.text)


def _require_known(subject: Subject) -> RecognizedModel:
    if subject.checkpoint is None:
        raise ValueError("running text through the model requires a supported model family")
    return subject.checkpoint


def _find_length(checkpoint: RecognizedModel) -> int:
    return max(1, min(WINDOW, checkpoint.config.context))


def _require_text(text: str) -> None:
    if find_spec("tokenizers") is None:
        raise ConversionError(
            "text input needs the package `tokenizers`, which is not installed",
            hint=f"install it: {name_install('verify')}; or {_TOKENS_HINT}",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConversionError(
            f"the text is not UTF-8 at character {error.start}", hint="convert it to UTF-8"
        ) from error


def _find_encoder(subjects: Sequence[Subject]) -> tuple[Subject, TokenEncoder | None]:
    """Return the first subject with a tokenizer, and its encoder.

    If no subject has a tokenizer, return the last subject and None.
    """
    for subject in subjects:
        if subject.encoder is not None:
            return subject, subject.encoder
    return subjects[-1], None


def _show_nothing(_: int) -> str:
    return ""


def _draw_tokens(checkpoint: RecognizedModel, why: str) -> Prompt:
    length = _find_length(checkpoint)
    drawn = np.random.default_rng(_SEED).integers(0, checkpoint.config.vocabulary, length)
    note = f"the model ran on random tokens, for which perplexity has no meaning: {why}"
    cut = _cut_windows(drawn.tolist(), length, "random tokens")
    return replace(cut, is_text=False, notes=(note,))


def _name_unknown(ids: Sequence[int], checkpoint: RecognizedModel) -> str:
    """Describe the ids that are not in the vocabulary; empty if all ids are in it."""
    vocabulary = checkpoint.config.vocabulary
    strange = list(dict.fromkeys(each for each in ids if not 0 <= each < vocabulary))
    if not strange:
        return ""
    return (
        f"its token ids are 0 to {vocabulary - 1}, which do not include "
        f"{join_names(strange, _SHOWN)}"
    )


def _cut_windows(
    ids: Sequence[int],
    length: int,
    source: str,
    around: tuple[Sequence[int], Sequence[int]] = ((), ()),
    text_of: Callable[[int], str] = _show_nothing,
) -> Prompt:
    """Cut ids into at most `MOST_WINDOWS` windows of at most `length` positions.

    `around` are the tokens that the tokenizer adds at the beginning and at the end of each window.
    They are left out if no other tokens would fit in a window.
    """
    first, last = around
    room = length - len(first) - len(last)
    if room < 1:
        first, last, room = (), (), length
    parts = [ids[start : start + room] for start in range(0, len(ids), room)]
    windows = [[*first, *part, *last] for part in parts[:MOST_WINDOWS]]
    made = np.zeros((len(windows), len(windows[0])), np.int64)
    mask = np.zeros(made.shape, np.bool_)
    for row, window in enumerate(windows):
        made[row, : len(window)] = window
        mask[row, : len(window)] = True
    left_out = len(ids) - room * MOST_WINDOWS
    added = f", {int(mask.sum()):,} with those that the tokenizer adds" if first or last else ""
    note = (
        f"the model ran on the first {room * MOST_WINDOWS:,} tokens of {source}{added}: the other "
        f"{left_out:,} were left out"
    )
    notes = (note,) if left_out > 0 else ()
    return Prompt(ids=made, mask=mask, source=source, text_of=text_of, notes=notes)
