"""The files of a model that rules look at, each read once, when a rule needs it."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

from weightctl.check.rules import RuleFinding
from weightctl.errors import FormatError, WeightctlError
from weightctl.formats import format_by_index, format_module
from weightctl.formats.huggingface import companions, config, is_config_of
from weightctl.formats.open.index import Index, read_index
from weightctl.formats.open.sets import extra_parts
from weightctl.formats.recognition import recognize_format
from weightctl.storage.files import is_directory, is_file, list_names, open_reader
from weightctl.system.files import SEPARATORS
from weightctl.text.untyped import is_list, is_object
from weightctl.verify.request import Request
from weightctl.verify.subject import Subject
from weightctl.weights.json_file import read_json
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.check.rules import JsonChange
    from weightctl.formats.scanning import FoundCode
    from weightctl.verify.results import Result
    from weightctl.weights.info import Header

# The JSON files of a model directory that are read here.
DOCUMENTS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.json",
    "preprocessor_config.json", "adapter_config.json",
)  # fmt: skip
# The largest known tokenizer.json has 35 MB.
_MAX_SIZE = 300_000_000


class CheckedModel:
    """A model at a path: its checkpoint, if it can be opened, and the files beside it.

    Rules add notes on what they could not check to `notes`.
    """

    def __init__(self, path: str | os.PathLike[str], format_name: str | None = None) -> None:
        self.subject = Subject(path, format_name)
        self.request = Request(subject=self.subject)
        self.path = self.subject.path
        self.notes: list[str] = []
        # The code in the files, each with its path, when it has been looked for.
        self.code: list[tuple[str, FoundCode]] | None = None
        # The results of the checks of `verify` that have run, by name.
        self.results: dict[str, Result] = {}

    @cached_property
    def header(self) -> Header | None:
        """The header of the checkpoint; None if it cannot be opened."""
        return None if self.subject.damage is not None else header_of(self.subject.stored)

    @cached_property
    def directory(self) -> str | None:
        """The directory whose other files belong to the model; None if there is none."""
        if is_directory(self.path):
            return self.path.rstrip(SEPARATORS) or "/"
        beside = os.path.dirname(self.path) or "."
        if format_by_index(self.path) is not None:
            return beside
        header = self.header
        if header is None or header.format not in {"safetensors", "pytorch"}:
            return None
        if not companions(header):
            return None
        document = config(header)
        return beside if not document or is_config_of(document, header) else None

    def locate(self, name: str) -> str:
        """Return the path of a file in the directory of the model."""
        return os.path.join(self.directory or "", name)

    def report(
        self, name: str, where: str, text: str, hint: str = "", changes: Sequence[JsonChange] = ()
    ) -> RuleFinding:
        """Return a finding about a file in the directory of the model."""
        path = self.locate(name)
        return RuleFinding(path=path, where=where, text=text, hint=hint, changes=tuple(changes))

    @cached_property
    def _read(self) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        found: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        for name in DOCUMENTS if self.directory is not None else ():
            path = self.locate(name)
            if not is_file(path):
                continue
            try:
                document = read_json(open_reader(path), _MAX_SIZE)
            except FormatError as error:
                reasons[name] = error.reason
                continue
            if is_object(document):
                found[name] = document
            else:
                reasons[name] = "the file is not a JSON object"
        return found, reasons

    def document(self, name: str) -> Mapping[str, Any] | None:
        """Return the content of one of `DOCUMENTS`; None if it is missing or damaged."""
        return self._read[0].get(name)

    @property
    def damaged_documents(self) -> Mapping[str, str]:
        """The names of the files that are not JSON objects, and why."""
        return self._read[1]

    @cached_property
    def index_path(self) -> str | None:
        """The path of the index of the parts; None if there is none, or if it is not clear."""
        if format_by_index(self.path) is not None:
            return self.path
        if self.directory is None:
            return None
        header = self.header
        if header is not None:
            listing = header.listing or ""
            return listing if format_by_index(listing) is not None else None
        try:
            names = list_names(self.directory)
        except FormatError:  # a web server cannot be listed
            return None
        found = [name for name in names if format_by_index(name) is not None]
        return self.locate(found[0]) if len(found) == 1 else None

    @cached_property
    def index(self) -> Index | FormatError | None:
        """The index of the parts, or the error of reading it; None if there is none."""
        if self.index_path is None:
            return None
        try:
            return read_index(self.index_path)
        except FormatError as error:
            return error

    @cached_property
    def parts(self) -> Mapping[str, Header]:
        """The headers of the parts that can be read, by file name.

        These are the parts that the index lists, and files that are named like them.
        """
        if not isinstance(self.index, Index):
            return {}
        directory = os.path.dirname(self.index.path)
        headers: dict[str, Header] = {}
        for name in (*self.index.parts, *extra_parts(self.index)):
            try:
                file = open_reader(os.path.join(directory, name))
                headers[name] = format_module(recognize_format(file, None)).read(file)
            except WeightctlError:
                continue
        return headers

    @cached_property
    def tokens(self) -> list[tuple[str, int]]:
        """The text and the id of each token of tokenizer.json; empty without one."""
        document = self.document("tokenizer.json") or {}
        inner = document.get("model")
        vocabulary: Any = inner.get("vocab") if is_object(inner) else None
        found: list[tuple[str, int]] = []
        if is_object(vocabulary):
            found = [(text, token) for text, token in vocabulary.items() if _is_id(token)]
        elif is_list(vocabulary):
            entries: list[Any] = [each if is_list(each) and each else [None] for each in vocabulary]
            found = [
                (each[0], token) for token, each in enumerate(entries) if isinstance(each[0], str)
            ]
        return [*found, *list_added(document)]

    @cached_property
    def token_ids(self) -> Mapping[str, int]:
        """The ids of the texts of tokenizer.json; empty without one."""
        return dict(self.tokens)


def list_added(document: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the texts and ids of the added tokens of a tokenizer.json."""
    added = document.get("added_tokens")
    entries: list[Any] = added if is_list(added) else []
    return [
        (each["content"], each["id"])
        for each in entries
        if is_object(each) and isinstance(each.get("content"), str) and _is_id(each.get("id"))
    ]


def _is_id(content: object) -> TypeGuard[int]:
    return isinstance(content, int) and not isinstance(content, bool)
