"""Statements on the files of a model and how they were made, which other programs can check."""

from __future__ import annotations

import os
from inspect import signature
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError, OutputError
from weightctl.storage.location import has_commits, is_remote, store_of
from weightctl.system import __version__
from weightctl.system.phases import begin_phase
from weightctl.text.untyped import is_list, is_tuple
from weightctl.write.attestation.forms import (
    Attested,
    describe_files,
    digest_files,
    find_form,
    list_files,
    list_inputs,
    name_of,
    render,
    spell,
)
from weightctl.write.attestation.signing import read_key, sign
from weightctl.write.partial import write_files
from weightctl.write.targets import check_new_file, is_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.weights.info import Header
    from weightctl.write.conversion import Conversion

# Files of a source at a URL that are larger are not read for their SHA-256.
_MOST_READ = 32_000_000
# Arguments of `convert` that do not say what it makes.
_UNTOLD = {"source", "out", "to", "source_format", "private", "pr", "dry_run"}


def check_attestation(
    path: str | None, key: str | None, inputs: Iterable[str], *, force: bool, output: str = ""
) -> None:
    """Raise `OutputError` if a statement cannot be written, or `ConversionError` for a wrong key.

    `inputs` are files that it must not replace, and `output` is a model that is written before.
    Call this before any work.
    """
    if path is None:
        raise ConversionError("--key applies only to statements", hint="add --attest FILE")
    if is_stream(output) or is_remote(output):
        raise OutputError(
            "--attest reads the output again, but it is not in files on this machine",
            hint="write to a local path, or use `weightctl verify OUTPUT --prove --attest FILE`",
        )
    suffix = find_form(path)
    if (suffix == ".sig" and key is None) or (suffix == ".cdx.json" and key is not None):
        raise OutputError(
            f"{path}: {suffix} is the suffix of a file that is {'not ' if key else ''}signed",
            hint="to sign a statement: --attest FILE.sig --key PRIVATE_KEY",
        )
    if key is not None:
        read_key(key, "private", None)
    check_new_file(path, "--attest", inputs, force=force)


def write_attestation(
    path: str, model: str, files: Sequence[str], derivation: Mapping[str, Any],
    *, key: str | None = None, force: bool = False,
) -> None:  # fmt: skip
    """Write a statement on a model, whose files are read for it: `files`, or its directory.

    The suffix of `path` selects the form. `derivation` is the predicate, and `key` the PEM file of
    a private key to sign with. Raises `OutputError` or `FormatError` if a file cannot be written or
    read.
    """
    check_attestation(path, key, (), force=force)
    begin_phase("computing the SHA-256 of the files")
    listed, left_out = list_files(model, files)
    if not listed:
        raise OutputError("--attest describes files, and the model has none", hint="save it first")
    is_file = len(listed) == 1 and not os.path.isdir(model)
    made = Attested(name_of(model), digest_files(listed), left_out, derivation, is_file)
    content = render(made, find_form(path))
    signed = content if key is None else spell(sign(content, key))
    write_files({os.path.realpath(path): signed}, force=force)


def describe_derivation(
    source: str, header: Header, *, consulted: Mapping[str, str], **more: Any
) -> dict[str, Any]:
    """Return the predicate of a statement: the source at a path or URL, and what was made of it.

    `consulted` maps the paths of other files that were read to their roles.
    """
    begin_phase("computing the SHA-256 of the source")
    inputs = digest_files(list_inputs(header), most=_MOST_READ)
    digests = digest_files({path: path for path in consulted})
    return {
        "tool": {"name": "weightctl", "version": __version__},
        "source": {
            "name": name_of(source),
            "revision": _find_revision(source),
            "files": describe_files(inputs),
        },
        "consulted": [
            {"role": role} | describe_files({name_of(path): digests[path]})[0]
            for path, role in consulted.items()
        ],
        **dict.fromkeys(("recipe", "importance", "through", "options", "proof")),
        **more,
    }


def attest_conversion(
    conversion: Conversion, path: str, *, key: str | None = None, force: bool = False
) -> None:
    """Write a statement on the files that a conversion has written, as `convert --attest` does.

    The arguments and errors are those of `write_attestation`.
    """
    plan, outcome, request = conversion.plan, conversion.outcome, conversion.request
    options: dict[str, Any] = {}
    if request is not None:
        usual = signature(request.function).parameters
        given = {name: each for name, each in request.arguments.items() if name not in _UNTOLD}
        options = {
            name: _spell(each)
            for name, each in given.items()
            if each not in (usual[name].default, [])
        }
    derivation = describe_derivation(
        request.arguments["source"] if request is not None else "",
        plan.source.header,
        consulted=plan.consulted,
        recipe=plan.recipe or plan.scheme or None,
        importance=any(item.importance is not None for item in plan.items),
        options=options,
    )
    plan.source.refuse_change()
    files = [each for output in conversion.outputs for each in output.outcome.files]
    write_attestation(path, outcome.path, files, derivation, key=key, force=force)


def _find_revision(source: str) -> str | None:
    """Return the commit of a source on the Hugging Face Hub; None for others."""
    if not has_commits(source):
        return None
    from weightctl.storage.remote.hub import HubStore  # it needs packages of an extra

    store = store_of(source)
    found = store.find_commit(source) if isinstance(store, HubStore) else None
    return None if found is None else found.commit


def _spell(value: object) -> object:
    """Return an argument without the directories of paths."""
    if is_list(value) or is_tuple(value):
        return [*map(_spell, value)]
    return os.path.basename(value) if isinstance(value, str) and os.path.isabs(value) else value
