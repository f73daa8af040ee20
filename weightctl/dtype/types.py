"""Types of values: `DType` for plain values, `QuantizationEncoding` for blocks."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from weightctl.errors import ArgumentTypeError, EncodingError

if TYPE_CHECKING:
    from weightctl.dtype.encodings import Encoding


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
            from weightctl.dtype.spellings import find_spelling

            encoding = find_spelling(value)
            found = None if encoding is None else encoding.dtype
        else:
            # `np.dtype` has `name`, NumPy's scalar types have `__name__`, and a torch dtype is
            # printed.
            name = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
            found = cls.__members__.get(str(name).removeprefix("torch.").removesuffix("_x2"))
        if found is None:
            from weightctl.dtype.spellings import hint_for

            raise EncodingError(f"{value!r} is not a dtype; use a DType", hint=hint_for(value))
        return found

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    __str__ = __repr__

    @property
    def encoding(self) -> Encoding:
        """The encoding that stores plain values of this type."""
        from weightctl.dtype.encodings import ENCODING_OF_DTYPE

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
        from weightctl.dtype.encodings import ENCODINGS

        return ENCODINGS[self.name]


def as_quantization(given: QuantizationEncoding | str) -> QuantizationEncoding:
    """Return a block type or its name as a `QuantizationEncoding`.

    Raises `ArgumentTypeError` if it is invalid.
    """
    if isinstance(given, QuantizationEncoding):
        return given
    from weightctl.dtype.spellings import find_spelling

    found = find_spelling(str(given))
    if found is None or found.quantization is None:
        raise ArgumentTypeError(
            f"{given!r} is not a block encoding; use a QuantizationEncoding",
            hint="for example `QuantizationEncoding.Q8_0`, or its name `Q8_0`",
        )
    return found.quantization
