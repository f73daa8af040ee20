"""The verdicts on tensors that are claimed to be quantizations, and the figures of a proof."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from weightctl.text.rows import Tabular
from weightctl.text.wording import join_names, percent, pluralize
from weightctl.verify.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Sequence


class Verdict(StrEnum):
    """What is known of a tensor that is claimed to be a quantization of another one."""

    REPRODUCED = "reproduced"
    PROVED = "proved"
    BOUNDED = "within the bound"
    OTHER = "not from the source"
    UNDECIDED = "not decidable"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorProof:
    """What is known of a tensor, by comparing it with the source's tensor.

    `rows` is the number of rows of the tensor, and `checked` the number of those that were read.
    `blocks` is the number of blocks in these (values, for plain types), `same` the number of those
    that the encoder gives, `wrong` of those that no encoder gives, and `unusual` of those with an
    unusual scale. `wrong_rows` and `unusual_rows` are the first rows with such blocks. `through` is
    the type that the source was converted to before, empty if it was not. `reason` says why a
    tensor is neither reproduced nor proved, and `details` gives numbers.
    """

    name: str
    reference: str
    encoding: str
    reference_encoding: str
    verdict: Verdict
    rows: int
    checked: int
    blocks: int = 0
    same: int = 0
    wrong: int = 0
    unusual: int = 0
    wrong_rows: tuple[int, ...] = ()
    unusual_rows: tuple[int, ...] = ()
    through: str = ""
    reason: str = ""
    details: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofFigures(Figures, Tabular):
    """The proofs of all tensors, and how the checkpoint was made, as far as the bytes tell.

    `recipe` is the name of the recipe, or of the only type, that gives the types of all tensors;
    it is empty if there is none. `uses_importance` says whether an importance matrix was used, None
    if that is unknown. `feeds_back` says that tensors were reproduced with error feedback.
    `additions` are the metadata keys that do not follow from the source. `most_wrong` is the
    largest share of rows of a matrix that can be wrong, if only a sample was read, with the
    probability `confidence`; it is 0 if all rows were read. `seed` chose the sample.
    """

    tensors: tuple[TensorProof, ...]
    recipe: str = ""
    uses_importance: bool | None = None
    feeds_back: bool = False
    through: str = ""
    additions: tuple[str, ...] = ()
    most_wrong: float = 0.0
    confidence: float = 1.0
    seed: int = 0
    counts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        found = Counter(each.verdict for each in self.tensors)
        counts = {str(each): found[each] for each in Verdict if found[each]}
        object.__setattr__(self, "counts", counts)  # frozen, and derived from the tensors

    def _records(self) -> Sequence[TensorProof]:
        return self.tensors

    @property
    def is_partial(self) -> bool:
        """Whether nothing is known of some tensors."""
        return any(each.verdict is Verdict.UNDECIDED for each in self.tensors)

    def list_reasons(self) -> list[str]:
        """Return why tensors are neither reproduced nor proved, nor reported as problems."""
        found: dict[tuple[Verdict, str], list[str]] = {}
        for each in self.tensors:
            if each.verdict in {Verdict.BOUNDED, Verdict.UNDECIDED}:
                found.setdefault((each.verdict, each.reason), []).append(each.name)
        return [
            f"{verdict}: {join_names(names, _MOST_NAMED)}: {reason}"
            for (verdict, reason), names in found.items()
        ]

    def summarize(self) -> str:
        of = [f"{count:,} {verdict}" for verdict, count in self.counts.items()]
        parts = [f"{pluralize(len(self.tensors), 'tensor')}: {join_names(of, len(of))}"]
        made = [f"as {self.recipe}"] if self.recipe else []
        if self.uses_importance is not None:
            made.append(f"{'with' if self.uses_importance else 'without'} an importance matrix")
        if self.feeds_back:
            made.append("with error feedback")
        if self.through:
            made.append(f"by way of {self.through}")
        if made:
            parts.append(f"made {', '.join(made)}")
        if self.most_wrong:
            parts.append(
                f"a sample: at most {percent(self.most_wrong)} of the rows of any matrix can "
                f"differ, at {percent(self.confidence)} confidence"
            )
        if self.additions:
            parts.append(f"not from the source: {join_names(self.additions, _MOST_NAMED)}")
        return "; ".join(parts)


_MOST_NAMED = 4
