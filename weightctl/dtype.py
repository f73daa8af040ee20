"""What numbers are made of: `DType`, `QuantizationEncoding`, and the one table of `Encoding`s."""

from __future__ import annotations

from enum import Enum
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from weightctl.errors import ArgumentTypeError, EncodingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dim import Dim

__all__ = [
    "ENCODINGS",
    "DType",
    "DTypeLike",
    "Encoding",
    "QuantizationEncoding",
    "as_dtype",
    "as_quantization",
    "encoding_by_id",
    "parse_encoding",
    "unknown_encoding",
]


_Size = TypeVar("_Size", int, "Dim")


class _LibraryDType(Protocol):
    """A dtype of NumPy or torch."""

    @property
    def itemsize(self) -> int: ...


class DType(Enum):
    """The type of one number.

    `DType("float16")`, `DType("f16")`, `DType(np.float16)`, `DType(np.dtype("float16"))` and
    `DType(torch.float16)` are `DType.float16`; raises `ValueError` for what is not a dtype.
    """

    bool = "bool"
    int8 = "int8"
    int16 = "int16"
    int32 = "int32"
    int64 = "int64"
    uint8 = "uint8"
    uint16 = "uint16"
    uint32 = "uint32"
    uint64 = "uint64"
    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"
    complex64 = "complex64"
    complex128 = "complex128"
    float8_e4m3fn = "float8_e4m3fn"
    float8_e5m2 = "float8_e5m2"
    float8_e4m3fnuz = "float8_e4m3fnuz"
    float8_e5m2fnuz = "float8_e5m2fnuz"
    float8_e8m0fnu = "float8_e8m0fnu"
    float4_e2m1fn = "float4_e2m1fn"

    @classmethod
    def _missing_(cls, value: object) -> DType | None:
        """Find the dtype that NumPy or torch, or a person, calls so."""
        if isinstance(value, str):
            encoding = None if value in _AMBIGUOUS else _spellings().get(_normalize_name(value))
            found = None if encoding is None else encoding.dtype
        else:
            # `np.dtype` has a name, NumPy's scalars are of types, and torch prints its name.
            name = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
            found = cls.__members__.get(str(name).removeprefix("torch.").removesuffix("_x2"))
        if found is None:
            raise EncodingError(f"a dtype is a DType, not {value!r}", hint=_hint_for(value))
        return found

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    __str__ = __repr__

    @property
    def encoding(self) -> Encoding:
        """The encoding that stores plain numbers of this type."""
        return _BY_DTYPE[self]

    @property
    def is_float(self) -> _bool:
        """Whether the numbers are real floating-point numbers."""
        return self.value.startswith(("float", "bfloat"))

    @property
    def is_integer(self) -> _bool:
        """Whether the numbers are integers."""
        return self.value.startswith(("int", "uint"))

    @property
    def is_complex(self) -> _bool:
        """Whether the numbers are complex ones."""
        return self.value.startswith("complex")


_bool = bool  # inside the class body above, `bool` is a member
# What NumPy means by these: it counts bytes, and safetensors bits; `float` is float32 in torch.
_AMBIGUOUS = {"f4": "float32", "i8": "int64", "u8": "uint64", "float": "float64"}

# What is taken where a dtype is: ours, its name, or that of NumPy or torch.
DTypeLike: TypeAlias = "DType | str | type[Any] | _LibraryDType"


def as_dtype(given: DTypeLike) -> DType:
    """Return a dtype in any spelling as a `DType`; `ArgumentTypeError` for what is not one."""
    if isinstance(given, DType):
        return given
    try:
        return DType(given)
    except EncodingError as error:
        raise ArgumentTypeError(error.message, hint=error.hint) from None


def _hint_for(value: object) -> str:
    """Return what may have been meant by what is not a dtype."""
    said: object = getattr(value, "__name__", value)
    if isinstance(said, str):
        import difflib  # only on an error

        if said in _AMBIGUOUS:
            return f"NumPy means {_AMBIGUOUS[said]} by `{said}`, and others do not; say which"
        wanted = _normalize_name(said)
        if (found := _spellings().get(wanted)) is not None and found.quantization is not None:
            return f"{found.name} is a QuantizationEncoding, of blocks of numbers"
        if near := difflib.get_close_matches(wanted, DType.__members__, n=3):
            return f"did you mean {' or '.join(near)}?"
    return "`DType.float32`; the names of NumPy and torch are taken too: `np.float32`"


class QuantizationEncoding(Enum):
    """A way ggml packs blocks of numbers; one member for each block type of ggml."""

    Q1_0 = "Q1_0"
    Q2_0 = "Q2_0"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"
    Q8_0 = "Q8_0"
    Q8_1 = "Q8_1"
    Q2_K = "Q2_K"
    Q3_K = "Q3_K"
    Q4_K = "Q4_K"
    Q5_K = "Q5_K"
    Q6_K = "Q6_K"
    Q8_K = "Q8_K"
    IQ1_S = "IQ1_S"
    IQ1_M = "IQ1_M"
    IQ2_XXS = "IQ2_XXS"
    IQ2_XS = "IQ2_XS"
    IQ2_S = "IQ2_S"
    IQ3_XXS = "IQ3_XXS"
    IQ3_S = "IQ3_S"
    IQ4_NL = "IQ4_NL"
    IQ4_XS = "IQ4_XS"
    TQ1_0 = "TQ1_0"
    TQ2_0 = "TQ2_0"
    MXFP4 = "MXFP4"
    NVFP4 = "NVFP4"

    def __repr__(self) -> str:
        return f"QuantizationEncoding.{self.name}"

    __str__ = __repr__

    @property
    def encoding(self) -> Encoding:
        """The line of the table for this encoding."""
        return ENCODINGS[self.name]


def as_quantization(given: QuantizationEncoding | str) -> QuantizationEncoding:
    """Return an encoding of blocks, or its name; `ArgumentTypeError` for what is not one."""
    if isinstance(given, QuantizationEncoding):
        return given
    found = _spellings().get(_normalize_name(str(given)))
    if found is None or found.quantization is None:
        raise ArgumentTypeError(
            f"an encoding of blocks is a QuantizationEncoding, not {given!r}",
            hint="`QuantizationEncoding.Q8_0`; its name is taken too: `Q8_0`",
        )
    return found.quantization


class Encoding(NamedTuple):
    """Every `block` elements of a row fill `size` bytes.

    `gguf`, `safetensors` and `pytorch` are what each format calls it, None where it has no name.
    `layout` is the `struct` format of one block, which says what a change of byte order swaps.
    `codec` refers to the codec of its blocks, `module:name`; empty where none of ours does them.
    """

    name: str
    block: int
    size: int
    layout: str
    gguf: int | None = None
    safetensors: str | None = None
    pytorch: str | None = None
    codec: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> DType | None:
        """The type of its numbers when each is stored by itself, None for blocks."""
        return _DTYPES.get(self.name)

    @property
    def quantization(self) -> QuantizationEncoding | None:
        """The block type, None for plain numbers."""
        return _QUANTIZATIONS.get(self.name)

    @property
    def is_real(self) -> bool:
        """Whether it is of real numbers with fractions, each by itself or in blocks."""
        return self.quantization is not None or (self.dtype is not None and self.dtype.is_float)

    @property
    def called(self) -> str:
        """What messages call it: its dtype, such as `float32`, or the block type."""
        return self.name if self.dtype is None else self.dtype.value

    @property
    def is_known(self) -> bool:
        """Whether the table has this encoding; the data of any other cannot be interpreted."""
        return ENCODINGS.get(self.name) == self

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of this shape (outermost first).

        Raises `EncodingError` where the elements do not fill whole blocks.
        """
        if self.block == 1:
            return prod(shape) * self.size
        if not self.fits(shape):
            raise EncodingError(f"shape {tuple(shape)} is no whole number of {self.name} blocks")
        return prod(shape) // self.block * self.size

    def elements_of(self, row_bytes: _Size) -> _Size:
        """Return how many elements are in a row of so many bytes, which are whole blocks."""
        return row_bytes // self.size * self.block

    def row_bytes(self, elements: _Size) -> _Size:
        """Return how many bytes a row of so many elements fills, which are whole blocks."""
        return elements // self.block * self.size

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether this shape is a whole number of blocks; ggml's blocks never cross rows."""
        if self.block == 1:
            return True
        if self.quantization is None:
            return prod(shape) % self.block == 0
        return bool(shape) and shape[-1] % self.block == 0


_CODECS = "weightctl.codecs."

# name, block, size, layout of one block, GGUF id, safetensors name, PyTorch name, codec
_TABLE = (
    Encoding("F64", 1, 8, "Q", 28, "F64", "float64"),
    Encoding("F32", 1, 4, "I", 0, "F32", "float32"),
    Encoding("F16", 1, 2, "H", 1, "F16", "float16"),
    Encoding("BF16", 1, 2, "H", 30, "BF16", "bfloat16"),
    Encoding("F8_E4M3", 1, 1, "B", None, "F8_E4M3", "float8_e4m3fn"),
    Encoding("F8_E5M2", 1, 1, "B", None, "F8_E5M2", "float8_e5m2"),
    Encoding("F8_E4M3FNUZ", 1, 1, "B", None, "F8_E4M3FNUZ", "float8_e4m3fnuz"),
    Encoding("F8_E5M2FNUZ", 1, 1, "B", None, "F8_E5M2FNUZ", "float8_e5m2fnuz"),
    Encoding("F8_E8M0", 1, 1, "B", None, "F8_E8M0", "float8_e8m0fnu"),
    Encoding("F4", 2, 1, "B", None, "F4", "float4_e2m1fn_x2"),
    Encoding("F6_E2M3", 4, 3, "3B", None, "F6_E2M3"),
    Encoding("F6_E3M2", 4, 3, "3B", None, "F6_E3M2"),
    Encoding("I8", 1, 1, "B", 24, "I8", "int8"),
    Encoding("I16", 1, 2, "H", 25, "I16", "int16"),
    Encoding("I32", 1, 4, "I", 26, "I32", "int32"),
    Encoding("I64", 1, 8, "Q", 27, "I64", "int64"),
    Encoding("U8", 1, 1, "B", None, "U8", "uint8"),
    Encoding("U16", 1, 2, "H", None, "U16", "uint16"),
    Encoding("U32", 1, 4, "I", None, "U32", "uint32"),
    Encoding("U64", 1, 8, "Q", None, "U64", "uint64"),
    Encoding("BOOL", 1, 1, "B", None, "BOOL", "bool"),
    Encoding("C64", 1, 8, "2I", None, "C64", "complex64"),
    Encoding("C32", 1, 4, "2H", None, None, "complex32"),
    Encoding("C128", 1, 16, "2Q", None, None, "complex128"),
    # Numbers with a scale and a zero point of their tensor or its channels.
    Encoding("QINT8", 1, 1, "B", None, None, "qint8"),
    Encoding("QUINT8", 1, 1, "B", None, None, "quint8"),
    Encoding("QINT32", 1, 4, "I", None, None, "qint32"),
    Encoding("QUINT4X2", 2, 1, "B", None, None, "quint4x2"),
    Encoding("QUINT2X4", 4, 1, "B", None, None, "quint2x4"),
    Encoding("Q1_0", 128, 18, "H16B", 41),
    Encoding("Q2_0", 64, 18, "H16B", 42),
    Encoding("Q4_0", 32, 18, "H16B", 2, codec=_CODECS + "symmetric:Q4_0"),
    Encoding("Q4_1", 32, 20, "2H16B", 3, codec=_CODECS + "affine:Q4_1"),
    Encoding("Q5_0", 32, 22, "HI16B", 6, codec=_CODECS + "symmetric:Q5_0"),
    Encoding("Q5_1", 32, 24, "2HI16B", 7, codec=_CODECS + "affine:Q5_1"),
    Encoding("Q8_0", 32, 34, "H32B", 8, codec=_CODECS + "q8_0:Q8_0"),
    Encoding("Q8_1", 32, 36, "2H32B", 9),
    Encoding("Q2_K", 256, 84, "80B2H", 10, codec=_CODECS + "q2_k:Q2_K"),
    Encoding("Q3_K", 256, 110, "108BH", 11, codec=_CODECS + "q3_k:Q3_K"),
    Encoding("Q4_K", 256, 144, "2H140B", 12, codec=_CODECS + "scales_and_mins:Q4_K"),
    Encoding("Q5_K", 256, 176, "2H172B", 13, codec=_CODECS + "scales_and_mins:Q5_K"),
    Encoding("Q6_K", 256, 210, "208BH", 14, codec=_CODECS + "q6_k:Q6_K"),
    Encoding("Q8_K", 256, 292, "I256B16H", 15),
    Encoding("IQ1_S", 256, 50, "H32B8H", 19),
    Encoding("IQ1_M", 256, 56, "48B4H", 29),
    Encoding("IQ2_XXS", 256, 66, "33H", 16),
    Encoding("IQ2_XS", 256, 74, "33H8B", 17),
    Encoding("IQ2_S", 256, 82, "H80B", 22),
    Encoding("IQ3_XXS", 256, 98, "H64B8I", 18),
    Encoding("IQ3_S", 256, 110, "H108B", 21),
    Encoding("IQ4_NL", 32, 18, "H16B", 20, codec=_CODECS + "codebook:IQ4_NL"),
    Encoding("IQ4_XS", 256, 136, "2H132B", 23, codec=_CODECS + "codebook:IQ4_XS"),
    Encoding("TQ1_0", 256, 54, "52BH", 34, codec=_CODECS + "ternary:TQ1_0"),
    Encoding("TQ2_0", 256, 66, "64BH", 35, codec=_CODECS + "ternary:TQ2_0"),
    Encoding("MXFP4", 32, 17, "17B", 39, codec=_CODECS + "e2m1:MXFP4"),
    Encoding("NVFP4", 64, 36, "36B", 40, codec=_CODECS + "e2m1:NVFP4"),
)

ENCODINGS: dict[str, Encoding] = {encoding.name: encoding for encoding in _TABLE}

_DTYPES: dict[str, DType] = {
    encoding.name: DType(name)
    for encoding in _TABLE
    if (name := (encoding.pytorch or "").removesuffix("_x2")) in DType.__members__
}
_QUANTIZATIONS = {kind.name: kind for kind in QuantizationEncoding}
_BY_DTYPE = {dtype: ENCODINGS[name] for name, dtype in _DTYPES.items()}
_BY_ID: dict[str, dict[int | str, Encoding]] = {
    "gguf": {e.gguf: e for e in _TABLE if e.gguf is not None},
    "safetensors": {e.safetensors: e for e in _TABLE if e.safetensors is not None},
    "pytorch": {e.pytorch: e for e in _TABLE if e.pytorch is not None},
}


def encoding_by_id(format_name: str, identifier: int | str) -> Encoding | None:
    """The encoding that a format calls `identifier`, None where the table lacks it."""
    return _BY_ID[format_name].get(identifier)


def unknown_encoding(format_name: str, identifier: int | str, count: int, nbytes: int) -> Encoding:
    """An encoding that the table lacks, for one tensor of `count` elements in `nbytes` bytes.

    A tensor without elements tells nothing of a block; it is taken to be one byte.
    """
    name = f"{format_name} type {identifier}"
    if isinstance(identifier, str):
        name = f'unknown dtype "{identifier}"'
    size = max(nbytes, 1)
    return Encoding(name, max(count, 1), size, f"{size}B")


def parse_encoding(text: str) -> Encoding:
    """The encoding a person means by `bf16`, `bfloat16`, `BF16`, `q4_k`, `f8_e4m3fn`, ...

    Raises `EncodingError` for an unknown name, with the nearest known ones.
    """
    wanted = _normalize_name(text)
    found = _spellings().get(wanted)
    if found is None:
        import difflib  # only on an error

        near = difflib.get_close_matches(wanted, _spellings(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "examples: f32, bf16, q8_0, q4_k"
        raise EncodingError(f"`{text}` is no type that weightctl knows", hint=hint)
    return found


def _normalize_name(text: str) -> str:
    return text.strip().lower().replace("-", "_").removeprefix("torch.")


@cache
def _spellings() -> dict[str, Encoding]:
    spellings: dict[str, Encoding] = {}
    for encoding in _TABLE:
        spellings[encoding.name.lower()] = encoding
        if encoding.pytorch is not None:
            spellings[encoding.pytorch.removesuffix("_x2")] = encoding
    short = {
        "fp64": "F64", "double": "F64", "fp32": "F32", "float": "F32", "single": "F32",
        "fp16": "F16", "half": "F16", "f8_e4m3fn": "F8_E4M3", "fp8": "F8_E4M3", "fp4": "F4",
        "fp8_e4m3": "F8_E4M3", "fp8_e5m2": "F8_E5M2", "float8_e4m3": "F8_E4M3",
    }  # fmt: skip
    return spellings | {spelling: ENCODINGS[name] for spelling, name in short.items()}
