"""The texts that a search runs a model on: one to find types with, another one to judge them."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from weightctl.calibrate.chunks import read_texts
from weightctl.verify.request import Request

if TYPE_CHECKING:
    from weightctl.verify.request import Subject
    from weightctl.verify.run.prompt import Prompt

# The tokens at the start of the built-in text that a model runs on: prose, dialogue, and code.
_BUILT_IN_TOKENS = 1024


def make_calibration(subject: Subject, text: str | None = None) -> Prompt:
    """Return the tokens on which sensitivities are measured: those of `text`, or a built-in text.

    The built-in text is the start of that of `weightctl imatrix`. It shares no sentence with that
    of `weightctl verify`, which judges the result. Raises the errors of `make_prompt`.
    """
    if text is None and _can_encode(subject):
        made = shorten(_make(subject, read_texts(())[0].content), _BUILT_IN_TOKENS)
        return replace(made, source="the built-in calibration text", notes=())
    return _make(subject, text)


def make_held_out(subject: Subject, text: str | None = None) -> Prompt:
    """Return the tokens on which the result is judged: those of `text`, or verify's built-in text.

    Raises the errors of `make_prompt`.
    """
    return _make(subject, text)


def _make(subject: Subject, text: str | None) -> Prompt:
    return Request(subject=subject, text=text).prompt


def _can_encode(subject: Subject) -> bool:
    return find_spec("tokenizers") is not None and subject.encoder is not None


def shorten(prompt: Prompt, most: int) -> Prompt:
    """Return the first windows of a prompt, or a part of the first one: about `most` tokens."""
    windows, length = prompt.ids.shape
    kept, length = (1, max(1, most)) if most < length else (min(windows, most // length), length)
    return replace(prompt, ids=prompt.ids[:kept, :length], mask=prompt.mask[:kept, :length])
