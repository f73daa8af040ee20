"""Texts and vocabularies for SentencePiece, and what it makes of them."""

# ruff: noqa: RUF001 - the letters that look alike are what is tested

from __future__ import annotations

import json
import lzma
import struct
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


# SentencePiece model files made by hand, field by field; nothing here comes from weightctl.


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def number(key: int, value: int) -> bytes:
    return varint(key << 3) + varint(value)


def field(key: int, content: bytes) -> bytes:
    """Return a field that is a string, bytes or a message."""
    return varint(key << 3 | 2) + varint(len(content)) + content


def piece(text: str, score: float | None = None, kind: int | None = None) -> bytes:
    """Return a piece, as the field of a model that it is."""
    content = field(1, text.encode())
    if score is not None:
        content += varint(2 << 3 | 5) + struct.pack("<f", score)
    if kind is not None:
        content += number(3, kind)
    return field(1, content)


def model_file(
    pieces: Iterable[tuple[str, float, int]],
    *,
    algorithm: int = 2,
    bos: int = 1,
    eos: int = 2,
    add_dummy_prefix: bool = True,
    charsmap: bytes = b"",
    normalizer: bytes = b"",
    trainer: bytes = b"",
    more: bytes = b"",
) -> bytes:
    """Return a tokenizer.model; the algorithm is BPE, 2, or unigram, 1; pieces of bytes are used.

    `normalizer` and `trainer` are further fields of these two, and `more` those of the model.
    """
    pieces = list(pieces)
    trainer += number(35, any(kind == 6 for _, _, kind in pieces))
    content = number(3, algorithm) + number(41, bos) + number(42, eos) + trainer
    rules = field(2, charsmap) + number(3, add_dummy_prefix) + normalizer
    return b"".join(piece(*each) for each in pieces) + field(2, content) + field(3, rules) + more


def keeps_spaces() -> bytes:
    """Return the field of a normalizer that keeps extra spaces."""
    return number(4, 0)


# Texts that normalizers and the handling of spaces treat in different ways.

TEXTS = [
    "plain words of the corpus",
    "The naïve café owner's résumé",
    "nai\u0308ve cafe\u0301 re\u0301sume\u0301",
    "ｆｕｌｌ－ｗｉｄｔｈ　ｔｅｘｔ １２３",
    "ﬁne ﬂow eﬃcient ﬆyle",
    "北京\u3000的天气",
    "zero\u200bwidth\u200cjoin\u200der\u2060x\ufeffy",
    "tab\there",
    "tabs\t\there\t",
    "line\nbreak",
    "lines\n\n\nbreak\n",
    "carriage\r\nreturn",
    "\n",
    "\t",
    " ",
    "   ",
    "",
    " one space before",
    "   three before",
    "one after ",
    "three after   ",
    "two  in   between    here",
    " \t mixed \n ",
    "no\u00a0break\u202fspaces\u2003em",
    "👋🏽 🎉🎉 👩\u200d👩\u200d👧 ❤️",
    "control\x01\x07\x1b\x7fchars",
    "nul\x00char",
    "vertical\x0btab\x0cfeed",
    "next\u0085line\u2028sep\u2029par",
    "ﻻ ﷲ ﷺ ﺍﻟﻌﺮﺑﻴﺔ",
    "مرحبا بالعالم",
    "½ ¼ ² ³ ① ⑩ ™ ㎏ ℃ ℌ 𝔘𝔫𝔦",
    "İstanbul ǅ ß ẞ Σς",
    "Å \u212b A\u030a",
    "한국어 \u1112\u1161\u11ab\u1100\u116e\u11a8",
    "ｶﾞｷﾞ ﾊﾟ ガギ か\u3099",
    "q\u0307\u0323 q\u0323\u0307",
    "①\u0301 ™\u0301 ½\u0338",
    "``quotes'' “curly” ‘single’",
    "a▁b ▁ ▁▁x",
    "xx\ufffdyy",
    "soft\u00adhyphen",
    "हिन्दी क़ भाषा",
    "UPPER lower MiXeD",
    "…‥․ ‼ ⁇",
    "¨ ´ ¸ ˘",
    "~ ～ 〜 ˜",
    "1e-05 12345.678 100%",
    "“déjà vu”, coûte que coûte; Ærøskøbing, Łódź, İstanbul.\n北京的天气很好，我们去公园。\n",
]


# fixtures/sentencepiece: model files, and the ids that SentencePiece itself gives to texts.

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
