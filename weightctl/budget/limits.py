"""The budget of a quantized model, as a user gives it: a limit, and the types to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.families.memory.caches import MemoryOptions
from weightctl.plan.scheme_names import find_scheme, refuse_mixture
from weightctl.plan.type_names import type_named
from weightctl.text.patterns import regular_expression
from weightctl.text.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.scheme import SchemeChoice

DEFAULT_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
# The default types for rows that are not multiples of 256. llama.cpp's substitutes for K-quants do
# not include IQ4_NL, which has a smaller error than Q4_0 in as many bytes, and Q4_1.
IN_PLACE = ("IQ4_NL", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
DEFAULT_SCHEMES = ("W4A16", "W8A16", "keep")
# The type of a weight in a model directory that is not quantized.
KEEP = "keep"


@dataclass(frozen=True, kw_only=True)
class QuantizationBudget:
    """What a quantized model may have.

    Exactly one limit is given: `bits` per weight, `size` in bytes of the files, `divergence` in
    nats, or the `memory` in which llama.cpp runs the model. The latter is for a `context` in tokens
    (None for the context length of the model) and a KV cache of the type `kv_type` (None for F16).

    `types` are the types to choose from. For GGUF, they are by default K-quants, and types with
    smaller blocks for rows that are not multiples of 256. For model directories, they are types of
    compressed-tensors, by default W4A16 and W8A16, and "keep". Tensors of one layer whose names
    contain the regular expression `same_type` get the same type. Sensitivities are measured on
    `calibration`, and the result on `text`; by default, these are two built-in texts.
    """

    bits: float | None = None
    size: int | str | None = None
    divergence: float | None = None
    memory: int | str | None = None
    context: int | None = None
    kv_type: str | None = None
    types: Sequence[str] | None = None
    same_type: str | None = None
    text: str | None = None
    calibration: str | None = None

    @property
    def option(self) -> str:
        """The budget as an option of `weightctl convert`."""
        given = {
            "--bpw": self.bits, "--size": self.size, "--max-kld": self.divergence,
            "--fit": self.memory, "--context": self.context, "--kv-type": self.kv_type,
        }  # fmt: skip
        return " ".join(f"{name} {each}" for name, each in given.items() if each is not None)

    def check(self) -> None:
        """Raise `ConversionError` if not one positive limit is given, or for an invalid pattern."""
        limits = (self.bits, self.size, self.divergence, self.memory)
        if sum(each is not None for each in limits) != 1:
            raise ConversionError(
                "a budget has exactly one limit",
                hint="use one of --bpw, --size, --max-kld and --fit (bits, size, divergence and "
                "memory in Python)",
            )
        if self.memory is None and (self.context is not None or self.kv_type is not None):
            raise ConversionError(
                "--context and --kv-type apply only to --fit", hint="leave them out, or use --fit"
            )
        self.make_options(1)
        for each in (self.bits, self.divergence, self.nbytes, self.memory_bytes):
            if each is not None and not 0 < each < float("inf"):
                raise ConversionError(
                    f"`{self.option}` is not a positive number",
                    hint="use a number above 0, such as --bpw 4.5 or --max-kld 0.02",
                )
        if self.same_type is not None:
            regular_expression(self.same_type)

    @property
    def nbytes(self) -> int | None:
        """The size in bytes; raises `WeightctlError` if it is not a size."""
        return parse_size(self.size) if isinstance(self.size, str) else self.size

    @property
    def memory_bytes(self) -> int | None:
        """The memory in bytes; raises `WeightctlError` if it is not a size."""
        return parse_size(self.memory) if isinstance(self.memory, str) else self.memory

    def make_options(self, context: int) -> MemoryOptions:
        """Return how the model is run in the memory; `context` is the context length of the model.

        Raises `WeightctlError` if the context or the type of the KV cache is invalid.
        """
        return MemoryOptions.of(self.context or context, self.kv_type or "F16")

    @property
    def encodings(self) -> list[Encoding]:
        """The types to choose from; raises `ConversionError` if one is not a type for GGUF."""
        found: list[Encoding] = []
        for name in self._list_types(DEFAULT_TYPES):
            each = type_named(name)
            if each is None or "gguf" not in each.ids:
                raise ConversionError(
                    f"`{name}` of --types is not a type that GGUF can store",
                    hint=f"for example --types {','.join(DEFAULT_TYPES)}",
                )
            found.append(each)
        return list(dict.fromkeys(found))

    @property
    def schemes(self) -> tuple[list[SchemeChoice], bool]:
        """The types of weights in a model directory, and whether they can keep their type.

        Raises `ConversionError` if one is not a type for model directories, or if they cannot be
        mixed.
        """
        found: list[SchemeChoice] = []
        names = self._list_types(DEFAULT_SCHEMES)
        for name in names:
            if name.lower() == KEEP:
                continue
            recipe = None if name.endswith(".toml") else find_scheme(name, is_directory=True)
            if recipe is None:
                raise ConversionError(
                    f"`{name}` of --types is not a type for model directories",
                    hint=f"for example --types {','.join(DEFAULT_SCHEMES)}",
                )
            found.append(recipe.choice)
        if not found:
            raise ConversionError(
                "--types has only `keep`", hint=f"for example --types {','.join(DEFAULT_SCHEMES)}"
            )
        refuse_mixture(found)
        return found, any(name.lower() == KEEP for name in names)

    def _list_types(self, usual: Sequence[str]) -> Sequence[str]:
        given = usual if self.types is None else self.types
        if not given:
            raise ConversionError("--types is empty", hint=f"for example --types {','.join(usual)}")
        return given
