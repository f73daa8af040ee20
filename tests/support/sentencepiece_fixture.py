"""fixtures/sentencepiece: model files, and the ids that SentencePiece itself gives to texts."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from sentencepiece_files import keeps_spaces, model_file

_FOLDER = Path(__file__).parents[2] / "fixtures" / "sentencepiece"
_ALGORITHMS = {"unigram": 1, "bpe": 2}


@cache
def read_fixture() -> dict[str, Any]:
    """Return the texts, the pieces of each kind, and the ids of each model."""
    found: dict[str, Any] = json.loads((_FOLDER / "ids.json").read_text())
    return found


@cache
def charsmap() -> bytes:
    """Return the normalizer `nmt_nfkc` as SentencePiece compiles it."""
    return lzma.decompress((_FOLDER / "nmt_nfkc.charsmap.xz").read_bytes())


def pieces(kind: str) -> list[tuple[str, float, int]]:
    return [(text, score, type_) for text, score, type_ in read_fixture()["pieces"][kind]]


def model_of(name: str, **changes: Any) -> bytes:
    """Return a model file by its name in the fixture, as `unigram nmt_nfkc removed`."""
    kind, rule, spaces = name.split()
    options = {
        "algorithm": _ALGORITHMS[kind],
        "charsmap": b"" if rule == "identity" else charsmap(),
        "normalizer": b"" if spaces == "removed" else keeps_spaces(),
    }
    return model_file(pieces(kind), **(options | changes))
