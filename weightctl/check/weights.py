"""Rules for the weights: the checks `structure`, `names` and `metadata` of `verify`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.check.index import has_unreadable_part, is_index_at_fault
from weightctl.check.rules import JsonChange, RuleFinding
from weightctl.formats.huggingface import ADAPTER_CONFIG, CONFIG
from weightctl.text.untyped import is_object
from weightctl.verify.checks.structure import check_total
from weightctl.verify.request import run_check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.check.model import CheckedModel
    from weightctl.verify.results import Problem, Result

# The causes, as `verify` names them, of a stored output that contradicts the config.
_TYING = {"output_forgotten": True, "tied": False}
_TIED = "tie_word_embeddings"


def find_damage(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find weights that cannot be opened, unless only the index is at fault."""
    damage = model.subject.damage
    if damage is not None and (has_unreadable_part(model) or not is_index_at_fault(model)):
        yield RuleFinding(path=damage.path, text=damage.reason, hint=damage.hint)


def find_unsound(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find what the check `structure` reports, except the total size of the index."""
    header = model.header
    if header is None:
        return
    result = _run(model, "structure")
    totals = [*check_total(header)]
    yield from (_convert(model, each) for each in result.problems if each not in totals)


def find_misfits(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find what the check `names` reports, except contradictions about a tied output."""
    seen: set[str] = set()
    for problem in _check_names(model):
        if _tying(problem) is not None:
            continue
        finding = _convert(model, replace(problem, cause=None))
        cause = "" if problem.cause is None else problem.cause.text
        # The tensors that one key of the config contradicts have one cause.
        if cause and cause not in seen:
            is_key = problem.where in (document := model.document(CONFIG) or {})
            path = model.locate(CONFIG) if is_key and document else finding.path
            finding = replace(finding, path=path, hint=finding.hint or cause)
        seen.add(cause)
        yield finding


def find_tying(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find a setting `tie_word_embeddings` that contradicts the stored output.

    A stored output may be one that was left over from training, so only a missing one decides.
    """
    for problem in _check_names(model):
        tying = _tying(problem)
        if tying is None:
            continue
        path = model.locate(CONFIG) if model.directory is not None else model.path
        name = f"`{problem.where}`"
        if tying:
            yield RuleFinding(
                path=path,
                where=_TIED,
                text=f"is not true, and {name} is not stored",
                changes=_change_tying(model),
            )
        else:
            yield RuleFinding(
                path=path,
                where=_TIED,
                text=f"ties the output to the embedding, but {name} is stored and differs from it",
                hint=f"set it to false if {name} is the output; otherwise write the model again "
                f"without {name}",
            )


def find_gguf_metadata(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find what the check `metadata` reports on a GGUF file."""
    if model.header is not None and model.header.format == "gguf":
        yield from (_convert(model, each) for each in _run(model, "metadata").problems)


def _check_names(model: CheckedModel) -> tuple[Problem, ...]:
    """Return the problems of the check `names`, which is not for adapters."""
    is_adapter = model.document(ADAPTER_CONFIG) is not None and model.document(CONFIG) is None
    return () if model.header is None or is_adapter else _run(model, "names").problems


def _run(model: CheckedModel, name: str) -> Result:
    """Run a check of `verify` once."""
    if name not in model.results:
        result = model.results[name] = run_check(name, model.request)
        model.notes += result.notes
        if result.skipped:
            model.notes.append(f"the check `{name}` was skipped: {result.skipped}")
    return model.results[name]


def _tying(problem: Problem) -> bool | None:
    """Return the right value of `tie_word_embeddings`; None if the problem is not about it."""
    return None if problem.cause is None else _TYING.get(problem.cause.name)


def _convert(model: CheckedModel, problem: Problem) -> RuleFinding:
    """Return the finding of a problem: a file that it names is the path, else the first file."""
    header = model.header
    files = header.files if header is not None else ()
    listing = header.listing if header is not None else None
    is_path = problem.where in {*files, listing, model.path, model.locate(CONFIG)}
    cause = f"; {problem.cause.text}" if problem.cause else ""
    return RuleFinding(
        path=problem.where if is_path else next(iter(files), model.path),
        where="" if is_path else problem.where,
        text=f"{problem.statement}{cause}",
        hint=problem.hint,
    )


def _change_tying(model: CheckedModel) -> tuple[JsonChange, ...]:
    document = model.document(CONFIG)
    if document is None:
        return ()
    keys = [*_list_places(document)] or [(_TIED,)]
    return tuple(JsonChange(model.locate(CONFIG), each, value=True) for each in keys)


def _list_places(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the keys at which a config states whether the output is tied."""
    if _TIED in document:
        yield (_TIED,)
    text = document.get("text_config")
    if is_object(text) and _TIED in text:
        yield ("text_config", _TIED)
