"""Rules for code that programs run or import when they load the model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.check.rules import RuleFinding
from weightctl.formats.scanning import FoundCode, scan_file
from weightctl.storage.files import is_file, list_names, open_reader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.check.model import CheckedModel

_SUFFIXES = (".json", ".jinja", ".yaml", ".yml")


def find_harmful_code(model: CheckedModel) -> Iterator[RuleFinding]:
    return _find_code(model, is_dangerous=True)


def find_other_code(model: CheckedModel) -> Iterator[RuleFinding]:
    return _find_code(model, is_dangerous=False)


def _find_code(model: CheckedModel, *, is_dangerous: bool) -> Iterator[RuleFinding]:
    if model.code is None:
        model.code = [*_list_code(model)]
    for path, code in model.code:
        if code.is_dangerous == is_dangerous:
            yield RuleFinding(
                path=path, text=f"has or names {code.text}", hint="read it before you run it"
            )


def _list_code(model: CheckedModel) -> Iterator[tuple[str, FoundCode]]:
    """Yield the code in the files of weights, and in the documents beside them."""
    paths = [*model.header.files] if model.header is not None else []
    if model.directory is not None:
        documents = [
            name for name in list_names(model.directory) if name.lower().endswith(_SUFFIXES)
        ]
        paths += [model.locate(name) for name in sorted(documents)]
    for path in dict.fromkeys(map(os.path.normpath, paths)):
        if is_file(path):
            found = scan_file(open_reader(path, as_stored=True))
            yield from dict.fromkeys((path, each.code) for each in found if each.code)
