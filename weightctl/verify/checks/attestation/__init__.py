"""The check `attestation`: the files are those that a statement names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError
from weightctl.storage.files import open_reader
from weightctl.storage.location import without_file_scheme
from weightctl.text.untyped import object_of
from weightctl.text.wording import join_names, pluralize
from weightctl.verify.figures import Figures
from weightctl.verify.results import Problem, Result, keep_first
from weightctl.weights.json_file import read_json
from weightctl.weights.tree import header_of
from weightctl.write.attestation.forms import (
    DERIVATION,
    MANIFEST,
    STATEMENT,
    digest_all,
    digest_files,
    list_files,
    list_inputs,
    list_parts,
)
from weightctl.write.attestation.signing import open_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.verify.request import Request

_LARGEST = 64_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationFigures(Figures):
    """What was compared with a statement: numbers of files, and what it says of the model.

    `recipe` and `counts` of verdicts are empty if it does not state them. `signature` is "checked",
    "not checked" or "none".
    """

    files: int
    source_files: int
    recipe: str
    counts: Mapping[str, Any]
    signature: str

    @property
    def is_partial(self) -> bool:
        return self.signature == "not checked"

    def summarize(self) -> str:
        of_source = f" and {self.source_files} of the source" if self.source_files else ""
        parts = [f"{pluralize(self.files, 'file')}{of_source} compared"]
        parts += [f"made as {self.recipe}"] if self.recipe else []
        counts = [f"{count} {verdict}" for verdict, count in self.counts.items()]
        parts += [f"tensors: {join_names(counts, len(counts))}"] if counts else []
        return "; ".join([*parts, f"signature: {self.signature}"])


def check(request: Request) -> Result:
    """Compare the SHA-256 of the files, and of the source if there is one, with a statement.

    Raises `FormatError` for a statement that is damaged, unknown or not signed with the key.
    """
    key, reference = request.key, request.reference
    if request.attestation is None:
        return Result(skipped="there is no statement: --attestation FILE")
    statement, is_signed = _read_statement(request.attestation, key)
    derivation, stated = object_of(statement, "predicate"), _read_files(statement)
    model = without_file_scheme(request.subject.path)
    found, left_out = list_files(model, list_parts(header_of(request.subject.stored)))
    # A manifest of `model_signing` can name hidden files, and leave out other files and folders.
    found |= {name: os.path.join(model, name) for name in left_out if name in stated}
    ignored = object_of(derivation, "serialization").get("ignore_paths") or ()
    folders = tuple(f"{each}/" for each in ignored)
    found = {name: path for name, path in found.items() if not f"{name}/".startswith(folders)}
    problems = [*_compare(stated, found, "the statement")]
    inputs = {} if reference is None else list_inputs(header_of(reference.stored))
    source = _read_source(statement) if inputs else {}
    problems += _compare(source, inputs, "the statement on the source", may_have_more=True)
    notes = ("the source was not compared: the statement has no SHA-256 of it",)
    return Result(
        problems=tuple(keep_first(problems, "{} other files differ from the statement")),
        figures=AttestationFigures(
            files=len(found),
            source_files=len(source),
            recipe=str(derivation.get("recipe") or ""),
            counts=object_of(object_of(derivation, "proof"), "counts"),
            signature="none" if not is_signed else "checked" if key else "not checked",
        ),
        notes=() if reference is None or source else notes,
    )


def _compare(
    stated: Mapping[str, str], found: Mapping[str, str], what: str, *, may_have_more: bool = False
) -> Iterator[Problem]:
    """Yield the differences between the SHA-256 that are stated, and those of files."""
    if len(stated) == len(found) == 1:  # a file can be renamed
        stated = dict(zip(found, stated.values(), strict=True))
    digests = digest_files({name: path for name, path in found.items() if name in stated})
    for name in sorted(stated if may_have_more else {*stated, *found}):
        if name not in found:
            yield Problem(where=name, text=f"the file is missing, but {what} names it")
        elif name not in stated:
            yield Problem(where=name, text=f"{what} does not name this file")
        elif digests[name] != stated[name]:
            text = f"its bytes differ from {what}: SHA-256 {digests[name]}, not {stated[name]}"
            yield Problem(where=name, text=text)


def _read_statement(path: str, key: str | None) -> tuple[Mapping[str, Any], bool]:
    """Return a statement, and whether it is signed; raises `FormatError` as `check` does."""
    document = read_json(open_reader(path), _LARGEST)
    is_signed, why = False, "it is not signed" if key is not None else ""
    try:
        if is_signed := "dsseEnvelope" in document:
            document, why = open_bundle(document, key)
        kind = document.get("predicateType")
        if document.get("_type") != STATEMENT or kind not in {DERIVATION, MANIFEST}:
            why = why or f"the predicate `{kind}` is not {DERIVATION} or {MANIFEST}"
        elif kind == MANIFEST:
            form = document["predicate"]["serialization"]
            if (form["method"], form["hash_type"]) != ("files", "sha256"):
                why = why or f"it has {form['hash_type']} of {form['method']}, not sha256 of files"
            model = [*_read_digests(document["subject"]).values()]
            if not why and model != [digest_all(_read_files(document).values())]:
                why = "the digest of the model is not that of its files"
        _ = why or (_read_files(document), _read_source(document))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise FormatError(path, None, f"the statement is damaged: {error!r}") from error
    if why:
        raise FormatError(path, None, why)
    return document, is_signed


def _read_files(statement: Mapping[str, Any]) -> dict[str, str]:
    if statement["predicateType"] == DERIVATION:
        return _read_digests(statement["subject"])
    return {str(each["name"]): str(each["digest"]) for each in statement["predicate"]["resources"]}


def _read_source(statement: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of the source that are known."""
    if statement["predicateType"] != DERIVATION:
        return {}
    found = _read_digests(statement["predicate"]["source"]["files"])
    return {name: digest for name, digest in found.items() if digest}


def _read_digests(files: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {str(each["name"]): str(each.get("digest", {}).get("sha256", "")) for each in files}
