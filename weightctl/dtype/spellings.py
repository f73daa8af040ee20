"""Spellings of types: users' names and those of NumPy and torch, and hints for misspelled ones."""

from __future__ import annotations

from functools import cache

from weightctl.dtype.encodings import ENCODINGS, Encoding
from weightctl.dtype.types import DType
from weightctl.errors import EncodingError

# The meaning in NumPy: it counts bytes, but safetensors counts bits, and torch's `float` is
# float32.
_AMBIGUOUS = {"f4": "float32", "i8": "int64", "u8": "uint64", "float": "float64"}


def find_spelling(text: str) -> Encoding | None:
    """Return the encoding with this name, None if the name is unknown or ambiguous."""
    return None if text in _AMBIGUOUS else _list_spellings().get(_normalize_name(text))


def hint_for(value: object) -> str:
    """Return a hint for a value that is not a dtype."""
    name: object = getattr(value, "__name__", value)
    if isinstance(name, str):
        import difflib  # only on an error

        if name in _AMBIGUOUS:
            return (
                f"`{name}` is ambiguous: NumPy means {_AMBIGUOUS[name]} by it, other "
                "libraries do not; use a name with the number of bits"
            )
        wanted = _normalize_name(name)
        if (found := _list_spellings().get(wanted)) is not None and found.quantization is not None:
            return f"{found.name} is a QuantizationEncoding, which has blocks of values"
        if near := difflib.get_close_matches(wanted, DType.__members__, n=3):
            return f"did you mean {' or '.join(near)}?"
    return "for example `DType.float32`; NumPy and torch dtypes also work: `np.float32`"


def parse_encoding(text: str) -> Encoding:
    """Return the encoding for a name such as `bf16`, `bfloat16`, `q4_k` or `f8_e4m3fn`.

    Raises `EncodingError` with similar names if the name is unknown.
    """
    wanted = _normalize_name(text)
    found = _list_spellings().get(wanted)
    if found is None:
        import difflib  # only on an error

        near = difflib.get_close_matches(wanted, _list_spellings(), n=3)
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else ("for example f32, bf16, q8_0 or q4_k")
        )
        raise EncodingError(f"`{text}` is not a type that weightctl supports", hint=hint)
    return found


def _normalize_name(text: str) -> str:
    return text.strip().lower().replace("-", "_").removeprefix("torch.")


@cache
def _list_spellings() -> dict[str, Encoding]:
    spellings: dict[str, Encoding] = {}
    for encoding in ENCODINGS.values():
        spellings[encoding.name.lower()] = encoding
        if (name := encoding.ids.get("pytorch")) is not None:
            spellings[str(name).removesuffix("_x2")] = encoding
    short = {
        "fp64": "F64", "double": "F64", "fp32": "F32", "float": "F32", "single": "F32",
        "fp16": "F16", "half": "F16", "f8_e4m3fn": "F8_E4M3", "fp8": "F8_E4M3", "fp4": "F4",
        "fp8_e4m3": "F8_E4M3", "fp8_e5m2": "F8_E5M2", "float8_e4m3": "F8_E4M3",
    }  # fmt: skip
    return spellings | {spelling: ENCODINGS[name] for spelling, name in short.items()}
