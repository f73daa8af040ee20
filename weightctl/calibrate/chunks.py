"""The tokens that an importance matrix is measured on, cut into chunks as llama-imatrix does."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.errors import ConversionError, TokenizerError
from weightctl.storage.files import read_start
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.translate.tokenizer.encoding import TokenEncoder

# The name of the text that is part of weightctl, and its file.
BUILT_IN = "weightctl-calibration"
_FILE = "calibration.txt"
# llama-imatrix ignores products with fewer rows.
LEAST_CONTEXT = 16
_MOST_BYTES = 1 << 28


class CalibrationText(NamedTuple):
    """A text and the name by which the importance matrix refers to it."""

    name: str
    content: str


def read_texts(paths: Sequence[str]) -> list[CalibrationText]:
    """Return the texts of files, or the built-in text if there are no paths.

    Like llama.cpp's tools, this leaves out a newline at the end. Raises `ConversionError` if a file
    is not text, and `OSError` or `FormatError` if it cannot be read.
    """
    if not paths:
        found = (files("weightctl.calibrate") / _FILE).read_text("utf-8")
        return [CalibrationText(BUILT_IN, found.removesuffix("\n"))]
    return [CalibrationText(path, _read(path).removesuffix("\n")) for path in paths]


def _read(path: str) -> str:
    raw = read_start(path, _MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise ConversionError(
            f"{path} is larger than 256 MiB", hint="a few hundred kilobytes of text are enough"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConversionError(
            f"{path} is not UTF-8 text: byte {error.start} is not valid",
            hint="convert it to UTF-8",
        ) from error


def cut_chunks(
    encoder: TokenEncoder, texts: Sequence[CalibrationText], context: int, most: int | None
) -> NDArray[np.int64]:
    """Return the tokens of texts in chunks, int64[chunks, context]; a rest is left out.

    If the tokenizer adds tokens before a text, the first tokens of each chunk are replaced by them.
    Raises `ConversionError` if the texts have fewer tokens than one chunk.
    """
    first = encoder.first
    ids = [*first, *(token for text in texts for token in encoder.ids(text.content))]
    count = len(ids) // context
    if most is not None:
        count = min(count, most)
    if not count:
        raise ConversionError(
            f"the text has {pluralize(len(ids), 'token')}, but a chunk has {context}",
            hint="give a longer text (--text-file), or use a smaller --context",
        )
    made = np.array(ids[: count * context], np.int64).reshape(count, context)
    made[:, : len(first)] = first
    return made


def require_tokenizer(encoder: TokenEncoder | None, where: str) -> TokenEncoder:
    """Return the encoder; raises `TokenizerError` if the model has no tokenizer."""
    if encoder is None:
        raise TokenizerError(
            f"{where}: the tokenizer is missing, and without it the text has no tokens",
            hint="for a directory, add its tokenizer.json; for a GGUF file, convert the model "
            "again from a directory that has tokenizer.json",
        )
    return encoder
