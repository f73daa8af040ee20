"""What a request asks for that cannot be had together, or of a model that does not have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Container

    from weightctl.verify.request import Request

__all__ = ["require_consistent"]


class _Bar(NamedTuple):
    """A bar: what sets it, its field of the request, and the check that it is applied in."""

    option: str
    field: str
    check: str
    needs_reference: bool
    is_of_the_end: bool


_BARS = (
    _Bar("--max-ppl", "max_perplexity", "forward", needs_reference=False, is_of_the_end=True),
    _Bar("--max-kld", "max_divergence", "forward", needs_reference=True, is_of_the_end=True),
    _Bar("--max-rmse", "max_rmse", "values", needs_reference=True, is_of_the_end=False),
)


def require_consistent(request: Request, wanted: Container[str]) -> None:
    """Raise `ConversionError` for a bar that no check would apply, and layers that there are not.

    A bar that is silently not applied would look as if it was passed.
    """
    last = _last_layer(request)
    for bar in _BARS:
        if getattr(request, bar.field) is None:
            continue
        if bar.needs_reference and request.reference is None:
            raise ConversionError(
                f"{bar.option} is about a difference, and there is nothing to compare with",
                hint="name a checkpoint that is known to be good: --against PATH",
            )
        if bar.check not in wanted:
            raise ConversionError(
                f"{bar.option} is applied by the check `{bar.check}`, which --check or --skip "
                "leaves out",
                hint=f"leave out {bar.option}, or ask for `{bar.check}`",
            )
        if bar.is_of_the_end and last is not None and not request.has_layer(last):
            raise ConversionError(
                f"{bar.option} is about the whole model, and --layers leaves out its last layer, "
                f"{last}",
                hint=f"leave out {bar.option}, or --layers",
            )


def _last_layer(request: Request) -> int | None:
    """Return the number of a known model's last layer; raise where others are asked for."""
    subject, asked = request.subject, request.layers
    if subject.damage is not None or subject.checkpoint is None:
        return None
    count = subject.checkpoint.config.layers
    # Of ranges beyond all bounds no length can be had.
    if asked is not None and not (asked and {asked[0], asked[-1]} <= {*range(count)}):
        raise ConversionError(
            f"{subject.path}: not all layers that are asked for are there: it has "
            f"{'layer 0 alone' if count == 1 else f'layers 0 to {count - 1}'}",
            hint="name layers that there are: --layers N-M",
        )
    return count - 1
