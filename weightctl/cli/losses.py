"""Describes the rounding errors of a conversion as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.cli.render import Cell
from weightctl.text.wording import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.codecs.loss import Loss
    from weightctl.plan.plan import Plan
    from weightctl.write.save import Saved

# The number of tensors that are listed; the others are summarized in one line.
_WORST = 5


def list_losses(plan: Plan, saved: Saved) -> list[list[Cell]]:
    """Return lines for the tensors that lost precision: the worst ones, and a summary of others."""
    lossy = [item for item in plan.items if _is_loss(saved.losses.get(item.info.name))]
    if not lossy:
        return []
    lossy.sort(key=lambda item: _badness(saved.losses[item.info.name]), reverse=True)
    shown, rest = lossy[:_WORST], lossy[_WORST:]
    names = [printable(item.weight or item.info.name) for item in shown]
    changes = [
        f"{item.stored.encoding} -> {item.scheme}"
        if item.weight
        else f"{item.source.encoding} -> {item.info.encoding}"
        for item in shown
    ]
    lines = [[Cell("relative RMSE of the rounded tensors, worst first:")]]
    for item, name, change in zip(shown, names, changes, strict=True):
        loss = saved.losses[item.info.name]
        padded = f"  {name.ljust(max(map(len, names)))}  {change.ljust(max(map(len, changes)))}"
        gone = "".join(f"; {text}" for text in _list_range_losses([loss]))
        lines.append([Cell(f"{padded}  {_percent(loss.relative_rmse)}{_nearest(loss)}{gone}")])
    if rest:
        losses = [saved.losses[item.info.name] for item in rest]
        errors = sorted(loss.relative_rmse for loss in losses)
        gone = "".join(f"; at most {text}" for text in _list_range_losses(losses))
        span = " to ".join(dict.fromkeys(_percent(error) for error in (errors[0], errors[-1])))
        lines.append([Cell(f"  {len(rest)} more  {span}{gone}", "dim")])
    return lines


def _nearest(loss: Loss) -> str:
    """Return the error of rounding to nearest, if scales were searched."""
    return "" if loss.nearest_rmse is None else f" (nearest: {_percent(loss.nearest_rmse)})"


def _is_loss(loss: Loss | None) -> bool:
    return loss is not None and bool(loss.squared_error or loss.overflows or loss.underflows)


def _badness(loss: Loss) -> tuple[float, float]:
    return loss.overflows / max(loss.count, 1), loss.relative_rmse


def _list_range_losses(losses: Sequence[Loss]) -> Iterator[str]:
    """Yield the largest fractions of values that are too large or too small for their new type."""
    over = max(loss.overflows / max(loss.count, 1) for loss in losses)
    under = max(loss.underflows / max(loss.count, 1) for loss in losses)
    if over:
        yield f"{_percent(over)} too large"
    if under:
        yield f"{_percent(under)} became zero"


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.2f} %" if percent >= 0.1 else f"{percent:.2g} %"


def overflow_notes(saved: Saved | None) -> Iterator[str]:
    """Yield a note on values that are too large for their new type; -q does not suppress it."""
    over = {name: loss for name, loss in saved.losses.items() if loss.overflows} if saved else {}
    if over:
        name, worst = max(over.items(), key=lambda entry: entry[1].overflows)
        total = sum(loss.overflows for loss in over.values())
        inside = f"`{name}`" if len(over) == 1 else f"{len(over)} tensors"
        most = f", {worst.overflows} of them in `{name}`" if len(over) > 1 else ""
        yield (
            f"1 value in {inside} was too large for its new type; a type with a larger exponent "
            "holds it"
            if total == 1
            else f"{total} values in {inside} were too large for their new type{most}; a type "
            "with a larger exponent holds them"
        )


def nonfinite_notes(saved: Saved | None) -> Iterator[str]:
    """Yield a note on values that are not finite and were replaced by 0."""
    zeroed = {name: loss.nonfinite for name, loss in saved.losses.items()} if saved else {}
    zeroed = {name: count for name, count in zeroed.items() if count}
    if zeroed:
        total, worst = sum(zeroed.values()), max(zeroed, key=lambda name: zeroed[name])
        values = "1 value that is" if total == 1 else f"{total} values that are"
        several = f", {zeroed[worst]} of them in `{worst}`" if len(zeroed) > 1 else ""
        inside = f"{len(zeroed)} tensors" if several else f"`{worst}`"
        yield f"{inside}: {values} not finite became 0{several}"
