"""What `weightctl ls --fit` shows: the memory that a model needs, and how much of it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from weightctl.cli.render import Cell
from weightctl.text.sizes import format_size, parse_size
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.families.memory.estimate import FittingLayers, MemoryEstimate
    from weightctl.weights.tree import Checkpoint

_PANEL = "Memory"

ListFit = Annotated[str | None, typer.Option("--fit")]
ListContext = Annotated[int | None, typer.Option("--context", min=1)]
ListKvType = Annotated[str | None, typer.Option("--kv-type")]


class FitResult(NamedTuple):
    """A memory in bytes, as it was given, the estimate, and what fits."""

    given: str
    memory: int
    estimate: MemoryEstimate
    found: FittingLayers

    @property
    def layers(self) -> int:
        """The number of layers of the model."""
        return len(self.estimate.layer_weights)

    @property
    def fits(self) -> bool:
        """Whether all layers and the output fit."""
        return self.found.gpu_layers == self.layers + 1

    @property
    def document(self) -> dict[str, Any]:
        """The result as JSON, according to `schemas/ls.json`."""
        estimate, options = self.estimate, self.estimate.options
        return {
            "memory": self.memory,
            "context": options.context,
            "kv_type": options.kv_type.name,
            "fits": self.fits,
            "layers": self.layers,
            "fitting_layers": self.found.layers,
            "gpu_layers": self.found.gpu_layers,
            "weights": estimate.weights - estimate.embedding,
            "embedding": estimate.embedding,
            "caches": [
                {"kind": kind, "layers": layers, "tokens": cells, "bytes": nbytes}
                for kind, layers, cells, nbytes in estimate.kinds
            ],
            "compute": estimate.compute,
            "overhead": self.found.overhead,
            "bytes": self._count_device(),
        }

    def _count_device(self) -> int:
        """Return the bytes that the whole model needs on a device, with the overhead."""
        return self.estimate.total - self.estimate.embedding + self.found.overhead

    def list_lines(self) -> Iterator[Sequence[Cell]]:
        """Yield the first line: whether the model fits."""
        context = f"with a context of {self.estimate.options.context:,} tokens"
        if self.fits:
            yield [Cell(f"fits into {self.given} {context}", "bold")]
            return
        yield [Cell(f"does not fit into {self.given} {context}", "bold")]
        if self.found.gpu_layers == 1:
            yield [Cell("no layer fits, but the output does: --n-gpu-layers 1")]
        elif self.found.gpu_layers:
            layers = f"{self.found.layers} of {pluralize(self.layers, 'layer')}"
            yield [Cell(f"{layers} and the output fit: --n-gpu-layers {self.found.gpu_layers}")]
        else:
            yield [Cell("no layer fits: --n-gpu-layers 0")]

    def list_rows(self) -> Iterator[Sequence[Cell]]:
        """Yield the rows of the table: what needs how much memory."""
        from weightctl.families.memory.caches import CACHE_KINDS

        estimate, options = self.estimate, self.estimate.options
        yield _row("weights", estimate.weights - estimate.embedding)
        for kind, layers, cells, nbytes in estimate.kinds:
            note = f"{pluralize(layers, 'layer')}, {cells:,} tokens, {options.kv_type}"
            if not cells:
                note = f"{pluralize(layers, 'layer')}, F32"
            name = CACHE_KINDS[kind]
            yield _row(f"KV cache, {name}" if cells else name, nbytes, note)
        yield _row("compute buffers", estimate.compute, f"{options.tokens} tokens at a time")
        yield _row("overhead", self.found.overhead, "kept free")
        yield _row("total", self._count_device(), style="bold")
        if estimate.embedding:
            yield _row("token embedding", estimate.embedding, "stays in main memory")


def _row(name: str, nbytes: int, note: str = "", style: str = "") -> Sequence[Cell]:
    return [Cell(name, style), Cell(format_size(nbytes), style, right=True), Cell(note, "dim")]


def find_fit(
    weights: Checkpoint, given: str | None, context: int | None, kv_type: str | None
) -> FitResult | None:
    """Return what fits, from the values of the options; None without --fit.

    Raises `WeightctlError` for invalid values, and the errors of `recognize` and `estimate_memory`.
    """
    if given is None:
        return None
    from weightctl.families.memory.caches import MemoryOptions
    from weightctl.families.memory.estimate import estimate_memory
    from weightctl.families.recognition import recognize

    memory = parse_size(given)
    model = recognize(weights)
    options = MemoryOptions.of(context or model.config.context, kv_type or "F16")
    estimate = estimate_memory(model, options)
    return FitResult(given, memory, estimate, estimate.fit(memory))
