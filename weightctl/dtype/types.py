"""Types of values: `DType` for plain values, `QuantizationEncoding` for blocks."""

from __future__ import annotations

from enum import Enum
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from weightctl.errors import ArgumentTypeError, EncodingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.dim import Dim

# The meaning in NumPy: it counts bytes, but safetensors counts bits, and torch's `float` is
# float32.
_AMBIGUOUS = {"f4": "float32", "i8": "int64", "u8": "uint64", "float": "float64"}
_Size = TypeVar("_Size", int, "Dim")
_NO_IDS: Mapping[str, int | str] = {}
_CODECS = "weightctl.codecs."


class _LibraryDType(Protocol):
    """A dtype of NumPy or torch."""

    @property
    def itemsize(self) -> int: ...


class DType(Enum):
    """The type of one value.

    `DType("float16")`, `DType("f16")`, `DType(np.float16)`, `DType(np.dtype("float16"))` and
    `DType(torch.float16)` are `DType.float16`; raises `ValueError` if the value is not a dtype.
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
        """Return the dtype for another spelling, or for a dtype of NumPy or torch."""
        if isinstance(value, str):
            encoding = find_spelling(value)
            found = None if encoding is None else encoding.dtype
        else:
            # `np.dtype` has `name`, NumPy's scalar types have `__name__`, and a torch dtype is
            # printed.
            name = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
            found = cls.__members__.get(str(name).removeprefix("torch.").removesuffix("_x2"))
        if found is None:
            raise EncodingError(f"{value!r} is not a dtype; use a DType", hint=hint_for(value))
        return found

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    __str__ = __repr__

    @property
    def encoding(self) -> Encoding:
        """The encoding that stores plain values of this type."""
        return ENCODING_OF_DTYPE[self]

    @property
    def is_float(self) -> _bool:
        """Whether values are real floating-point numbers."""
        return self.value.startswith(("float", "bfloat"))

    @property
    def is_integer(self) -> _bool:
        """Whether values are integers."""
        return self.value.startswith(("int", "uint"))

    @property
    def is_complex(self) -> _bool:
        """Whether values are complex numbers."""
        return self.value.startswith("complex")


_bool = bool  # inside the class body above, `bool` is a member

# What is accepted as a dtype: a `DType`, its name, or a dtype of NumPy or torch.
DTypeLike: TypeAlias = "DType | str | type[Any] | _LibraryDType"


def as_dtype(given: DTypeLike) -> DType:
    """Return a dtype in any spelling as a `DType`; raises `ArgumentTypeError` if it is invalid."""
    if isinstance(given, DType):
        return given
    try:
        return DType(given)
    except EncodingError as error:
        raise ArgumentTypeError(error.message, hint=error.hint) from None


class QuantizationEncoding(Enum):
    """A block type of ggml."""

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
        """The entry of the table for this type."""
        return ENCODINGS[self.name]


def as_quantization(given: QuantizationEncoding | str) -> QuantizationEncoding:
    """Return a block type or its name as a `QuantizationEncoding`.

    Raises `ArgumentTypeError` if it is invalid.
    """
    if isinstance(given, QuantizationEncoding):
        return given

    found = find_spelling(str(given))
    if found is None or found.quantization is None:
        raise ArgumentTypeError(
            f"{given!r} is not a block encoding; use a QuantizationEncoding",
            hint="for example `QuantizationEncoding.Q8_0`, or its name `Q8_0`",
        )
    return found.quantization


# The table of tensor encodings: their ids in each format, their codecs, and their properties.


class BlockScale(NamedTuple):
    """A field with scales in a block: `width` consecutive values of a `form`, from byte `offset`.

    Forms are `f16`, `f32`, `e8m0` and `ue4m3`. If `is_positive`, encoders never write a negative
    value. A field that `is_added` is added instead of multiplied, so that a value of any small
    magnitude is valid. If `in_nibbles`, the value is spread over the highest four bits of four
    16-bit words.
    """

    called: str
    offset: int
    form: str = "f16"
    width: int = 1
    is_positive: bool = False
    is_added: bool = False
    in_nibbles: bool = False


class Encoding(NamedTuple):
    """An encoding of values: every `block` elements of a row fill `size` bytes.

    `layout` is the `struct` format of one block, for swapping the byte order. `ids` has the
    encoding's id in each format, by format name. `codec` refers to the codec of its blocks,
    `module:name`; it is empty if weightctl has none. `file_type` is llama.cpp's number for a file
    that mostly has this encoding (llama.h, `llama_ftype`). `fallback` replaces it if the row is not
    divisible into blocks (llama-quant.cpp, `tensor_type_fallback`); if that does not fit either,
    F16 does. If it `takes_importance`, ggml uses importance weights when it encodes blocks
    (ggml-quants.c); if it `needs_importance`, ggml cannot encode them without. `encode_ns` is the
    time in nanoseconds in which one core encodes a value, without and with importance, as measured
    on an AMD EPYC; it is used only to estimate times. `scales` are the fields of a block that scale
    its values. `significand` is the number of significand bits of plain floats, including the
    implicit one. Encodings without `holds_weights` are for scales, or for values that have separate
    scales.
    """

    name: str
    block: int
    size: int
    layout: str
    ids: Mapping[str, int | str] = _NO_IDS
    codec: str = ""
    file_type: int | None = None
    fallback: str = ""
    takes_importance: bool = False
    needs_importance: bool = False
    encode_ns: tuple[float, float] = (1.0, 1.0)
    scales: tuple[BlockScale, ...] = ()
    significand: int | None = None
    holds_weights: bool = True

    def __hash__(self) -> int:
        return hash((self.name, self.block, self.size))

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> DType | None:
        """The dtype of plain values, None for blocks."""
        return _DTYPES.get(self.name)

    @property
    def quantization(self) -> QuantizationEncoding | None:
        """The block type, None for plain values."""
        return _QUANTIZATIONS.get(self.name)

    @property
    def is_real(self) -> bool:
        """Whether it holds real numbers with fractions, plain or in blocks."""
        return self.quantization is not None or (self.dtype is not None and self.dtype.is_float)

    @property
    def called(self) -> str:
        """The name for messages: its dtype, such as `float32`, or the block type."""
        return self.name if self.dtype is None else self.dtype.value

    @property
    def is_known(self) -> bool:
        """Whether the table has this encoding; other data cannot be interpreted."""
        return ENCODINGS.get(self.name) == self

    def nbytes(self, shape: Sequence[int]) -> int:
        """Return the number of bytes of a tensor of this shape, outermost dimension first.

        Raises `EncodingError` if the elements do not fill whole blocks.
        """
        if self.block == 1:
            return prod(shape) * self.size
        if not self.fits(shape):
            raise EncodingError(
                f"the last dimension of shape {tuple(shape)} is not a multiple of the {self.name} "
                f"block size, {self.block}"
            )
        return prod(shape) // self.block * self.size

    def elements_of(self, row_bytes: _Size) -> _Size:
        """Return the number of elements in a row of this many bytes, which must be whole blocks."""
        return row_bytes // self.size * self.block

    def row_bytes(self, elements: _Size) -> _Size:
        """Return the number of bytes of a row of this many elements, which must be whole blocks."""
        return elements // self.block * self.size

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether this shape consists of whole blocks; ggml's blocks never cross rows."""
        if self.block == 1:
            return True
        if self.quantization is None:
            return prod(shape) % self.block == 0
        return bool(shape) and shape[-1] % self.block == 0


_SCALE = (BlockScale("scale", 0),)
_POSITIVE = (BlockScale("scale", 0, is_positive=True),)
_SCALE_AND_MINIMUM = (*_POSITIVE, BlockScale("minimum", 2, is_added=True))

# Each line has a name, the elements and bytes of a block, its layout, and its ids in formats.
# Offsets of scales are those in the codec's `block_dtype`, or in ggml-common.h if there is no
# codec.
# fmt: off
_TABLE = (
    Encoding("F64", 1, 8, "Q", {"gguf": 28, "safetensors": "F64", "pytorch": "float64"},
        significand=53),
    Encoding("F32", 1, 4, "I",
        {"gguf": 0, "whisper.cpp": 0, "safetensors": "F32", "pytorch": "float32"},
        file_type=0, significand=24),
    Encoding("F16", 1, 2, "H",
        {"gguf": 1, "whisper.cpp": 1, "safetensors": "F16", "pytorch": "float16"},
        file_type=1, significand=11),
    Encoding("BF16", 1, 2, "H", {"gguf": 30, "safetensors": "BF16", "pytorch": "bfloat16"},
        file_type=32, significand=8),
    Encoding("F8_E4M3", 1, 1, "B", {"safetensors": "F8_E4M3", "pytorch": "float8_e4m3fn"},
        significand=4),
    Encoding("F8_E5M2", 1, 1, "B", {"safetensors": "F8_E5M2", "pytorch": "float8_e5m2"},
        significand=3),
    Encoding("F8_E4M3FNUZ", 1, 1, "B",
        {"safetensors": "F8_E4M3FNUZ", "pytorch": "float8_e4m3fnuz"},
        significand=4),
    Encoding("F8_E5M2FNUZ", 1, 1, "B",
        {"safetensors": "F8_E5M2FNUZ", "pytorch": "float8_e5m2fnuz"},
        significand=3),
    Encoding("F8_E8M0", 1, 1, "B", {"safetensors": "F8_E8M0", "pytorch": "float8_e8m0fnu"},
        holds_weights=False),
    Encoding("F4", 2, 1, "B", {"safetensors": "F4", "pytorch": "float4_e2m1fn_x2"},
        holds_weights=False),
    Encoding("F6_E2M3", 4, 3, "3B", {"safetensors": "F6_E2M3"}),
    Encoding("F6_E3M2", 4, 3, "3B", {"safetensors": "F6_E3M2"}),
    Encoding("I8", 1, 1, "B", {"gguf": 24, "safetensors": "I8", "pytorch": "int8"}),
    Encoding("I16", 1, 2, "H", {"gguf": 25, "safetensors": "I16", "pytorch": "int16"}),
    Encoding("I32", 1, 4, "I", {"gguf": 26, "safetensors": "I32", "pytorch": "int32"}),
    Encoding("I64", 1, 8, "Q", {"gguf": 27, "safetensors": "I64", "pytorch": "int64"}),
    Encoding("U8", 1, 1, "B", {"safetensors": "U8", "pytorch": "uint8"}),
    Encoding("U16", 1, 2, "H", {"safetensors": "U16", "pytorch": "uint16"}),
    Encoding("U32", 1, 4, "I", {"safetensors": "U32", "pytorch": "uint32"}),
    Encoding("U64", 1, 8, "Q", {"safetensors": "U64", "pytorch": "uint64"}),
    Encoding("BOOL", 1, 1, "B", {"safetensors": "BOOL", "pytorch": "bool"}),
    Encoding("C64", 1, 8, "2I", {"safetensors": "C64", "pytorch": "complex64"}),
    Encoding("C32", 1, 4, "2H", {"pytorch": "complex32"}),
    Encoding("C128", 1, 16, "2Q", {"pytorch": "complex128"}),
    # Values with a scale and a zero point for the whole tensor or per channel.
    Encoding("QINT8", 1, 1, "B", {"pytorch": "qint8"}),
    Encoding("QUINT8", 1, 1, "B", {"pytorch": "quint8"}),
    Encoding("QINT32", 1, 4, "I", {"pytorch": "qint32"}),
    Encoding("QUINT4X2", 2, 1, "B", {"pytorch": "quint4x2"}),
    Encoding("QUINT2X4", 4, 1, "B", {"pytorch": "quint2x4"}),
    Encoding("Q1_0", 128, 18, "H16B", {"gguf": 41},
        file_type=40, codec=_CODECS + "ternary:Q1_0", encode_ns=(0.8, 0.8), scales=_POSITIVE),
    Encoding("Q2_0", 64, 18, "H16B", {"gguf": 42},
        file_type=41, codec=_CODECS + "ternary:Q2_0", fallback="Q4_0", encode_ns=(0.8, 0.8),
        scales=_POSITIVE),
    Encoding("Q4_0", 32, 18, "H16B", {"gguf": 2, "whisper.cpp": 2},
        file_type=2, codec=_CODECS + "symmetric:Q4_0", takes_importance=True,
        encode_ns=(0.8, 5.5), scales=_SCALE),
    Encoding("Q4_1", 32, 20, "2H16B", {"gguf": 3, "whisper.cpp": 3},
        file_type=3, codec=_CODECS + "affine:Q4_1", takes_importance=True, encode_ns=(1.0, 14.1),
        scales=_SCALE_AND_MINIMUM),
    Encoding("Q5_0", 32, 22, "HI16B", {"gguf": 6, "whisper.cpp": 6},
        file_type=8, codec=_CODECS + "symmetric:Q5_0", takes_importance=True,
        encode_ns=(0.9, 5.7), scales=_SCALE),
    Encoding("Q5_1", 32, 24, "2HI16B", {"gguf": 7, "whisper.cpp": 7},
        file_type=9, codec=_CODECS + "affine:Q5_1", takes_importance=True, encode_ns=(1.0, 14.3),
        scales=_SCALE_AND_MINIMUM),
    Encoding("Q8_0", 32, 34, "H32B", {"gguf": 8, "whisper.cpp": 8},
        file_type=7, codec=_CODECS + "q8_0:Q8_0", scales=_POSITIVE),
    Encoding("Q8_1", 32, 36, "2H32B", {"gguf": 9}, scales=_POSITIVE),
    Encoding("Q2_K", 256, 84, "80B2H", {"gguf": 10, "whisper.cpp": 10},
        file_type=10, codec=_CODECS + "q2_k:Q2_K", fallback="Q4_0", takes_importance=True,
        encode_ns=(6.4, 14.8),
        scales=(
            BlockScale("scale", 80, is_positive=True), BlockScale("minimum", 82, is_added=True),
        )),
    Encoding("Q3_K", 256, 110, "108BH", {"gguf": 11, "whisper.cpp": 11},
        file_type=12, codec=_CODECS + "q3_k:Q3_K", fallback="Q4_0", takes_importance=True,
        encode_ns=(3.5, 5.4),
        scales=(BlockScale("scale", 108),)),
    Encoding("Q4_K", 256, 144, "2H140B", {"gguf": 12, "whisper.cpp": 12},
        file_type=14, codec=_CODECS + "scales_and_mins:Q4_K", fallback="Q5_0",
        takes_importance=True, encode_ns=(7.1, 11.8),
        scales=_SCALE_AND_MINIMUM),
    Encoding("Q5_K", 256, 176, "2H172B", {"gguf": 13, "whisper.cpp": 13},
        file_type=16, codec=_CODECS + "scales_and_mins:Q5_K", fallback="Q5_1",
        takes_importance=True, encode_ns=(6.0, 12.0),
        scales=_SCALE_AND_MINIMUM),
    Encoding("Q6_K", 256, 210, "208BH", {"gguf": 14, "whisper.cpp": 14},
        file_type=18, codec=_CODECS + "q6_k:Q6_K", fallback="Q8_0", takes_importance=True,
        encode_ns=(4.8, 4.9),
        scales=(BlockScale("scale", 208),)),
    Encoding("Q8_K", 256, 292, "I256B16H", {"gguf": 15}, scales=(BlockScale("scale", 0, "f32"),)),
    Encoding("IQ1_S", 256, 50, "H32B8H", {"gguf": 19},
        file_type=24, codec=_CODECS + "ternary_grids:IQ1_S", fallback="IQ4_NL",
        takes_importance=True, needs_importance=True, encode_ns=(100.0, 100.0), scales=_SCALE),
    Encoding("IQ1_M", 256, 56, "48B4H", {"gguf": 29},
        file_type=31, codec=_CODECS + "ternary_grids:IQ1_M", fallback="IQ4_NL",
        takes_importance=True, encode_ns=(100.0, 100.0),
        scales=(BlockScale("scale", 48, in_nibbles=True),)),
    Encoding("IQ2_XXS", 256, 66, "33H", {"gguf": 16},
        file_type=19, codec=_CODECS + "signed_grids:IQ2_XXS", fallback="IQ4_NL",
        takes_importance=True, needs_importance=True, encode_ns=(140.0, 140.0), scales=_SCALE),
    Encoding("IQ2_XS", 256, 74, "33H8B", {"gguf": 17},
        file_type=20, codec=_CODECS + "signed_grids:IQ2_XS", fallback="IQ4_NL",
        takes_importance=True, needs_importance=True, encode_ns=(240.0, 240.0), scales=_SCALE),
    Encoding("IQ2_S", 256, 82, "H80B", {"gguf": 22},
        file_type=28, codec=_CODECS + "signed_grids:IQ2_S", fallback="IQ4_NL",
        takes_importance=True, encode_ns=(210.0, 210.0), scales=_SCALE),
    Encoding("IQ3_XXS", 256, 98, "H64B8I", {"gguf": 18},
        file_type=23, codec=_CODECS + "signed_grids:IQ3_XXS", fallback="IQ4_NL",
        takes_importance=True, encode_ns=(290.0, 290.0), scales=_SCALE),
    Encoding("IQ3_S", 256, 110, "H108B", {"gguf": 21},
        file_type=26, codec=_CODECS + "signed_grids:IQ3_S", fallback="IQ4_NL",
        takes_importance=True, encode_ns=(160.0, 160.0), scales=_SCALE),
    Encoding("IQ4_NL", 32, 18, "H16B", {"gguf": 20},
        file_type=25, codec=_CODECS + "codebook:IQ4_NL", takes_importance=True,
        encode_ns=(4.5, 4.8), scales=_SCALE),
    Encoding("IQ4_XS", 256, 136, "2H132B", {"gguf": 23},
        file_type=30, codec=_CODECS + "codebook:IQ4_XS", fallback="IQ4_NL",
        takes_importance=True, encode_ns=(4.9, 5.1),
        scales=_SCALE),
    Encoding("TQ1_0", 256, 54, "52BH", {"gguf": 34},
        file_type=36, codec=_CODECS + "ternary:TQ1_0", fallback="Q4_0",
        encode_ns=(1.5, 1.5), scales=(BlockScale("scale", 52, is_positive=True),)),
    Encoding("TQ2_0", 256, 66, "64BH", {"gguf": 35},
        file_type=37, codec=_CODECS + "ternary:TQ2_0", fallback="Q4_0",
        encode_ns=(1.4, 1.4), scales=(BlockScale("scale", 64, is_positive=True),)),
    Encoding("MXFP4", 32, 17, "17B", {"gguf": 39},
        file_type=38, codec=_CODECS + "e2m1:MXFP4",
        encode_ns=(1.8, 1.8), scales=(BlockScale("exponent", 0, "e8m0"),)),
    Encoding("NVFP4", 64, 36, "36B", {"gguf": 40},
        file_type=39, codec=_CODECS + "e2m1:NVFP4",
        encode_ns=(3.6, 3.6), scales=(BlockScale("scale", 0, "ue4m3",
        width=4),)),
)
# fmt: on

ENCODINGS: dict[str, Encoding] = {encoding.name: encoding for encoding in _TABLE}

_DTYPES: dict[str, DType] = {
    encoding.name: DType[name]
    for encoding in _TABLE
    if (name := str(encoding.ids.get("pytorch", "")).removesuffix("_x2")) in DType.__members__
}
_QUANTIZATIONS = {kind.name: kind for kind in QuantizationEncoding}
ENCODING_OF_DTYPE = {dtype: ENCODINGS[name] for name, dtype in _DTYPES.items()}
_BY_ID = {
    (format_name, identifier): encoding
    for encoding in _TABLE
    for format_name, identifier in encoding.ids.items()
}


def encoding_by_id(format_name: str, identifier: int | str) -> Encoding | None:
    """Return the encoding with this id in a format, None if the table does not have it."""
    return _BY_ID.get((format_name, identifier))


def unknown_encoding(format_name: str, identifier: int | str, count: int, nbytes: int) -> Encoding:
    """Return an encoding for a tensor of unknown type with `count` elements in `nbytes` bytes.

    The size of a block is taken to be one byte if the tensor has no elements.
    """
    name = f"{format_name} type {identifier}"
    if isinstance(identifier, str):
        name = f'unknown dtype "{identifier}"'
    size = max(nbytes, 1)
    return Encoding(name, max(count, 1), size, f"{size}B")


# Spellings of types: users' names and those of NumPy and torch, and hints for misspelled ones.


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

        spellings = _list_spellings()
        near = [name for name in spellings if name.startswith(wanted)][:3]
        near = near or difflib.get_close_matches(wanted, spellings, n=3)
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
