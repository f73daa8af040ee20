"""The forms of statements: in-toto, the manifest of OpenSSF model signing, and CycloneDX."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import FormatError, OutputError
from weightctl.formats.huggingface import companions
from weightctl.storage.files import open_reader
from weightctl.storage.local import FileReader
from weightctl.storage.location import has_commits, is_remote, parse_location
from weightctl.system.files import relative_name
from weightctl.system.threads import Memory, map_in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from threading import Event

    from weightctl.weights.info import Header

STATEMENT = "https://in-toto.io/Statement/v1"
# What `schemas/attestation.json` describes, and the manifest that `model_signing` writes.
DERIVATION = "https://weightctl/derivation/v1"
MANIFEST = "https://model_signing/signature/v1.0"
_CHUNK = 4 << 20
_SHA256_DIGITS = 64


class Attested(NamedTuple):
    """What a statement says: the name of a model, the SHA-256 of its files, and how it was made.

    `left_out` are files in its directory that the statement is not about.
    """

    name: str
    files: Mapping[str, str]
    left_out: Sequence[str]
    derivation: Mapping[str, Any]
    is_file: bool


def find_form(path: str) -> str:
    """Return the suffix of a path that selects a form; raises `OutputError` if none does."""
    for suffix in _FORMS:
        if path.lower().endswith(suffix):
            return suffix
    hint = f"use {', '.join(_FORMS)}"
    raise OutputError(f"{path} does not have the suffix of a statement", hint=hint)


def render(made: Attested, form: str) -> bytes:
    """Return a statement as JSON, whose bytes depend only on its content."""
    return spell(_FORMS[form](made))


def spell(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2, sort_keys=True, default=str).encode() + b"\n"


def name_of(path: str) -> str:
    """Return the name of a path or URL in statements; the directories of a path stay private."""
    name = parse_location(path).name
    return name if is_remote(path) or not name else os.path.basename(os.path.abspath(name))


def list_files(model: str, files: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the paths of the files of a model by name, and the names of those that are left out.

    These are all files of a directory, without hidden ones and statements; otherwise `files`.
    Raises `FormatError` if a directory cannot be listed.
    """
    if not os.path.isdir(model):
        return _name_files(files), []

    def refuse(error: OSError) -> None:
        raise FormatError(model, None, f"cannot be listed: {error.strerror}") from error

    walked = os.walk(model, onerror=refuse)
    paths = [os.path.join(folder, name) for folder, _, names in walked for name in names]
    found = {relative_name(path, model): path for path in paths}
    # No statement is about another one, so that they can be written in any order.
    left_out = [name for name in found if "/." in f"/{name}" or name.endswith(tuple(_FORMS))]
    return {name: path for name, path in found.items() if name not in left_out}, left_out


def list_parts(header: Header) -> list[str]:
    """Return the paths of the files with tensors, and of their index."""
    return [*header.files, *([header.listing] if header.listing else ())]


def list_inputs(header: Header) -> dict[str, str]:
    """Return the paths of the files of a checkpoint and of its companions, by name."""
    return _name_files([*list_parts(header), *companions(header).values()])


def _name_files(paths: Sequence[str]) -> dict[str, str]:
    """Return paths by their names relative to the common directory."""
    known = {os.path.abspath(path): path for path in paths}
    directory = os.path.commonpath(map(os.path.dirname, known)) if known else ""
    return {relative_name(place, directory): path for place, path in known.items()}


def digest_files(paths: Mapping[str, str], *, most: int | None = None) -> dict[str, str]:
    """Return the SHA-256 of files, in hexadecimal, by name.

    It is empty for a remote file of more than `most` bytes, unless the Hugging Face Hub states it.
    Raises `FormatError` if a file cannot be read, or changes in the meantime.
    """
    memory = Memory()

    def digest(path: str, ended: Event) -> str:
        reader = open_reader(path, as_stored=True)
        if most is not None and reader.size > most and not isinstance(reader, FileReader):
            return reader.tag if has_commits(path) and len(reader.tag) == _SHA256_DIGITS else ""
        found = hashlib.sha256()
        for start in range(0, reader.size, _CHUNK):
            if ended.is_set():
                break
            chunk = memory.room("chunk", min(_CHUNK, reader.size - start))
            reader.read_into(start, chunk)
            found.update(chunk)
        reader.refuse_change()
        return found.hexdigest()

    with map_in_threads(digest, paths.values()) as made:
        return dict(zip(paths, made, strict=True))


def describe_files(files: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return files as in-toto's ResourceDescriptors; those of unknown SHA-256 have only names."""
    return [
        {"name": name} | ({"digest": {"sha256": digest}} if digest else {})
        for name, digest in sorted(files.items())
    ]


def digest_all(digests: Iterable[str]) -> str:
    """Return the digest of a manifest: the SHA-256 of the digests of its files, in their order."""
    return hashlib.sha256(b"".join(map(bytes.fromhex, digests))).hexdigest()


def _make_statement(made: Attested) -> dict[str, Any]:
    head = {"_type": STATEMENT, "subject": describe_files(made.files)}
    return head | {"predicateType": DERIVATION, "predicate": made.derivation}


def _make_manifest(made: Attested) -> dict[str, Any]:
    # model_signing sorts by the parts of paths, and a model that is a file is its own directory.
    files = sorted(made.files.items(), key=lambda file: file[0].split("/"))
    form = {"method": "files", "hash_type": "sha256", "allow_symlinks": False}
    resources = [
        {"name": "." if made.is_file else name, "algorithm": "sha256", "digest": digest}
        for name, digest in files
    ]
    predicate = {"serialization": form | {"ignore_paths": made.left_out}, "resources": resources}
    subject = {made.name: digest_all(digest for _, digest in files)}
    return _make_statement(made._replace(files=subject, derivation=predicate)) | {
        "predicateType": MANIFEST
    }


def _make_bom(made: Attested) -> dict[str, Any]:
    source = made.derivation["source"]
    digests = {each["name"]: each.get("digest", {}).get("sha256", "") for each in source["files"]}
    ancestor = _make_component(source["name"], digests)
    ancestor |= {"version": source["revision"]} if source["revision"] else {}
    model = _make_component(made.name, made.files) | {"pedigree": {"ancestors": [ancestor]}}
    model |= {"properties": [*_list_properties(made.derivation)]}
    tools = {"components": [{"type": "application"} | made.derivation["tool"]]}
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    return head | {"metadata": {"tools": tools, "component": model}}


def _make_component(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Return a model as a component of CycloneDX, with its files as components."""
    components: list[dict[str, Any]] = []
    for each, digest in sorted(files.items()):
        hashes = {"hashes": [{"alg": "SHA-256", "content": digest}]} if digest else {}
        components.append({"type": "file", "name": each} | hashes)
    return {"type": "machine-learning-model", "name": name, "components": components}


def _list_properties(derivation: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield how a model was made, and the numbers of verdicts, as properties of CycloneDX."""
    facts: dict[str, Any] = {**derivation, **(derivation["proof"] or {})}
    for name, value in facts.items():
        if name not in {"source", "tool", "proof", "tensors"} and value not in (None, [], (), {}):
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            yield {"name": f"weightctl:{name}", "value": text}


_FORMS: dict[str, Callable[[Attested], dict[str, Any]]] = {
    ".intoto.json": _make_statement, ".oms.json": _make_manifest, ".sig": _make_manifest,
    ".cdx.json": _make_bom,
}  # fmt: skip
