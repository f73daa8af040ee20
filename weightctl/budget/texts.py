"""The texts that a search runs a model on: one to find types with, another one to judge them."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from weightctl.verify.request import Request

if TYPE_CHECKING:
    from weightctl.verify.request import Subject
    from weightctl.verify.run.prompt import Prompt

__all__ = ["make_calibration", "make_held_out", "shorten"]

# Written for weightctl: prose, a dialogue, code, and other languages. It shares no sentence with
# the built-in text of `weightctl verify`, which judges the result.
_TEXT = '''\
The old road to the mill follows the river for two miles before it turns into the forest. In spring
the water often covers it, and the carts have to wait until the ground is firm again. My uncle, who
drove them for thirty years, said that people were never late because of it: they simply planned
for a day more. When the railway came, the wait ended, and so did most of the talk at the ferry.

"Have you read the letter?" she asked. "Twice," he said, "and I still do not know what he wants."
"Money, I should think." "He has never asked for any before." She laughed, folded the paper, and put
it back in the drawer. "Then he has learned something in the city after all."

A cell divides in several steps. First the chromosomes, which hold the genetic material, are copied.
Then the copies are pulled apart by fibres that grow from both ends of the cell. At last a wall is
formed in the middle, and there are two cells with the same set of genes. If an error happens in one
of these steps, the cell usually notices, and stops; if it does not, the error is passed on.

The committee met on 14 March 1968 to consider the budget for the coming year. It noted that the
revenue of the state had risen by 3.5 per cent, to 4,120,000 dollars, while its expenses had risen
by nearly twice as much. The members agreed that neither taxes nor debts should be increased, and
asked the treasurer to report on possible savings before the end of May.

def merge(first, second):
    """Merge two sorted lists into one."""
    merged, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        if first[i] <= second[j]:
            merged.append(first[i])
            i += 1
        else:
            merged.append(second[j])
            j += 1
    return merged + first[i:] + second[j:]

User: How do I remove a file in git without deleting it from the disk?
Assistant: Use `git rm --cached FILE`. The file stays in your working tree, and the next commit
removes it from the repository. Add its name to `.gitignore`, so that it is not added again.

Le musee est ouvert tous les jours sauf le lundi, de dix heures a dix-huit heures. Les enfants de
moins de douze ans ne paient pas. Die Sitzung beginnt um neun Uhr; wer spaeter kommt, wartet bitte
vor der Tuer. El tren sale de la estacion central cada media hora, y el viaje dura unos cuarenta
minutos si no hay nieve en las montanas.

SELECT name, COUNT(*) AS orders FROM customers JOIN orders ON orders.customer = customers.id
WHERE orders.placed >= '2021-01-01' GROUP BY name HAVING COUNT(*) > 3 ORDER BY orders DESC;
'''


def make_calibration(subject: Subject, text: str | None = None) -> Prompt:
    """Return the tokens on which sensitivities are measured: those of `text`, or a built-in text.

    Raises the errors of `make_prompt`.
    """
    if text is None and _can_encode(subject):
        return replace(_make(subject, _TEXT), source="the built-in calibration text")
    return _make(subject, text)


def make_held_out(subject: Subject, text: str | None = None) -> Prompt:
    """Return the tokens on which the result is judged: those of `text`, or verify's built-in text.

    Raises the errors of `make_prompt`.
    """
    return _make(subject, text)


def _make(subject: Subject, text: str | None) -> Prompt:
    return Request(subject=subject, text=text).prompt


def _can_encode(subject: Subject) -> bool:
    return find_spec("tokenizers") is not None and subject.encoder is not None


def shorten(prompt: Prompt, most: int) -> Prompt:
    """Return the first windows of a prompt, or a part of the first one: about `most` tokens."""
    windows, length = prompt.ids.shape
    kept, length = (1, max(1, most)) if most < length else (min(windows, most // length), length)
    return replace(prompt, ids=prompt.ids[:kept, :length], mask=prompt.mask[:kept, :length])
