"""The regular expressions of byte-level tokenizers for splitting text, as in tokenizer.json.

Each is that of a published tokenizer (and of llama.cpp's `llama-vocab.cpp`, which spells it in its
own way). `plain` converts other spellings of the same expression.
"""

from __future__ import annotations

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = rf"\s*[\r\n]+|{_SPACES}"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"

DIGIT = r"\p{N}"
ANY_DIGITS = r"\p{N}+"
UP_TO_THREE_DIGITS = r"\p{N}{1,3}"
THREE_DIGITS = "[0-9][0-9][0-9]"
THOUSANDS = r"\d{1,3}(?=(?:\d{3})*\b)"
# Groups of three from the right, for the digits of all scripts.
# The places before the last 3, 6, 9 ... digits of a number.
BEFORE_THOUSANDS = r"(?=(\d{3})+(?!\d))"
ALL_THOUSANDS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
NEWLINE = r"[\r\n]"
PARAGRAPHS = r"[^\n]+|[\n]+"
# Unicode's punctuation, and ASCII's symbols; llama.cpp's default does not include the backtick.
PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"
PUNCTUATION_FALCON = r"[\p{P}\$\+<=>\^~\|`]+"

GPT_2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
GPT_2_SHORT = GPT_2.removesuffix(r"|\s+")
LLAMA_3 = rf"{CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}"
QWEN_2 = rf"{CONTRACTIONS}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_LINES}"
QWEN_35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
)
MINICPM_5 = rf"{CONTRACTIONS}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_LINES}"
UFAKZEKA = rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_LINES}"
SEED_CODER = rf"{CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}"
BAILING = rf"{CONTRACTIONS}|{_WORD}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|{_SPACES}"
EXAONE = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}"
)
JAIS_2 = (
    rf"{CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|"
    + "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
    + r"|\s{1}"
)

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN_END = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
TEKKEN = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_TEKKEN_END}"
_CASED = rf"{_START}{_UPPER}*{_LOWER}+{CONTRACTIONS}?|{_START}{_UPPER}+{_LOWER}*{CONTRACTIONS}?"
GPT_4O = rf"{_CASED}|\p{{N}}{{1,3}}|{_TEKKEN_END}"
# Kimi's own expression (`tokenization_kimi.py`).
_NOT_HAN = r"&&[^\p{Han}]]"
KIMI = (
    rf"[\p{{Han}}]+|{_START}{_UPPER[:-1]}{_NOT_HAN}*{_LOWER[:-1]}{_NOT_HAN}+{CONTRACTIONS}?|"
    rf"{_START}{_UPPER[:-1]}{_NOT_HAN}+{_LOWER[:-1]}{_NOT_HAN}*{CONTRACTIONS}?|"
    rf"\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}"
)
YOUTU = rf"{_CASED}|\p{{N}}|{_TEKKEN_END}"
YOUTU_CJK = (
    "[\uac00-\ud7a3\u3131-\u318e]+|"
    "[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|"
    "[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)

BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_WORD = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
# As in llama.cpp, where the third range begins with U+8C48.
AFMOE_CJK = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff]+"
)
DEEPSEEK_3 = rf"{_DEEPSEEK_WORD}[\r\n]*|{_LINES}"
SPARK = rf"{_DEEPSEEK_WORD}|[\r\n]|{_SPACES}"
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
DEEPSEEK_LATIN = (
    "\\s?[A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943]+"
)

# Other spellings of the same expressions. Possessive quantifiers are included, because the text
# that follows them can never match what they match.
_SAME = (
    ("\r", r"\r"),
    ("\n", r"\n"),
    ("\t", r"\t"),
    ("'(?i:[sdmt]|ll|ve|re)", CONTRACTIONS),
    ("(?i:'s|'t|'re|'ve|'m|'d|'ll)", CONTRACTIONS),
    ("(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", CONTRACTIONS),
    ("'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])", CONTRACTIONS),
    ("'(?:[sdmt]|ll|ve|re)", "'s|'t|'re|'ve|'m|'ll|'d"),
    (r"[^\r\n\p{L}\p{N}]?+\p{L}+", _WORD),
    (r"[^\s\p{L}\p{N}]++[\r\n]*", r"[^\s\p{L}\p{N}]+[\r\n]*"),
    (r"\p{N}{1}|", r"\p{N}|"),
    # Bloom's own spelling, with a class inside of the class.
    (" ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+", BLOOM),
)


def plain(regex: str) -> str:
    """Return a regular expression with known spellings replaced by those of this module."""
    for other, ours in _SAME:
        regex = regex.replace(other, ours)
    return regex
