"""Code outside of pickles: what loaders run or import because a file of another kind says so.

Sources: Keras' `saving/serialization_lib.py`, transformers' `dynamic_module_utils.py`, diffusers'
`pipeline_loading_utils.py`, PEFT's `auto.py`, Hydra's `instantiate`, `numcodecs.pickles`, PyTables'
`attributeset.py`, `torch.export`'s `serde/serialize.py`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes

from weightctl.errors import FormatError
from weightctl.formats import gguf
from weightctl.formats.pickles.dangers import is_dangerous
from weightctl.formats.pickles.scan import PickleNames
from weightctl.formats.scanning.found import FoundCode, Scanned, unread
from weightctl.formats.scanning.sources import EnclosedFile
from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from weightctl.formats.scanning.sources import ScanPlace, ScanSource

_Code = tuple[str, bool]  # what the code is, and whether it is dangerous
_Pairs = list[tuple[str, Any]]

_HDF5, _SQLITE, _GGUF = b"\x89HDF\r\n\x1a\n", b"SQLite format 3\0", (b"GGUF", b"FUGG")
_JSON = re.compile(r".*\.json|(?:.*/)?\.z(?:array|attrs|metadata)")
_TEMPLATE = re.compile(r".*\.(?:jinja2?|j2)")
_NATIVE = re.compile(r".*\.(?:so(?:\.\d+)*|dll|dylib|pyd|o|cubin)")
_TEMPLATE_KEY = "tokenizer.chat_template"
_LARGEST_TEXT = 1 << 26
_WINDOW, _OVERLAP = 1 << 22, 1 << 12
# Random bytes look like the start of an object once in gigabytes.
_MOST_BROKEN = 100


class _Pattern(NamedTuple):
    """Bytes that are found where a loader runs code, and what is reported."""

    pattern: re.Pattern[bytes]
    text: str
    is_dangerous: bool = False


# Calls that start programs, run text, load other code, delete files or use a network.
_CALLS = re.compile(
    rb"(?<![\w.])(?:os\s*\.\s*(?:system|popen|exec\w+|spawn\w+|posix_spawn\w*|remove|unlink)"
    rb"|(?:subprocess|socket|ctypes|pty|shutil|marshal|pickle|requests|urllib\.request|importlib)"
    rb"\s*\.\s*\w+|eval|exec|__import__)\s*\("
    rb"|__(?:builtins|globals|subclasses|code)__"
    rb"|\bfrom\s+(?:os|subprocess|socket|ctypes|importlib|posix|nt|builtins)\s+import\b"
)
# Names in the compiled code of a function that harmless functions of numbers do not use.
_PAYLOAD = re.compile(
    rb"(?<!\w)(?:system|popen|subprocess|socket|eval|exec|__import__|__builtins__|urllib|requests"
    rb"|posix|ctypes|base64|marshal|pickle|builtins|getattr|open|os)(?!\w)"
)
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]{40,}")
# Operations of TorchScript that read or write files.
_FILES_OF_TORCH = re.compile(
    rb"\btorch\s*\.\s*(?:save|from_file|classes)\b|\baten\s*(?:::|\.)\s*(?:save|from_file)\b"
)
_PYTABLES = (
    _Pattern(
        re.compile(rb"c(?:posix|nt|os|builtins|__builtin__|subprocess)\n\w+\n"
                   rb"|\x8c.(?:posix|nt|os|builtins|subprocess)\x94?\x8c", re.DOTALL),
        "a pickle in HDF5 that names dangerous globals", is_dangerous=True,
    ),
    _Pattern(re.compile(rb"PYTABLES_FORMAT_VERSION"), "objects that PyTables unpickles"),
)  # fmt: skip
_TENSORFLOW = (
    _Pattern(
        re.compile(rb"\b(?:ReadFile|WriteFile|MatchingFiles|PyFunc\w*|EagerPyFunc)\b"),
        "a TensorFlow operation on files, or one that calls Python", is_dangerous=True,
    ),
    _Pattern(re.compile(rb"."), "a graph of TensorFlow"),
)  # fmt: skip
_TAG = re.compile(rb"!!python/|tag:yaml\.org,2002:py|(?m:^%TAG\b.*yaml\.org)")
_ESCAPE = re.compile(rb"\\(?:x|u00|U000000)[2-7][0-9a-fA-F]")
_TARGET = re.compile(rb"""["']?_target_["']?\s*:\s*["']?([\w.]+)""")
_SPECIAL_NAMES = re.compile(r"__\w+__")
_COMPUTED_NAMES = re.compile(r"\|\s*attr\b|__|\\x5f|\\u005f", re.IGNORECASE)
_EXPRESSION = re.compile(r"__|\b(?:import|eval|exec|lambda|open|getattr)\b")
# JSON without these words, and without escapes of ASCII letters, names no code.
_WORDS = re.compile(
    rb"class_name|auto_map|chat_template|custom_pipeline|pickle|graph_module|expr_str"
    rb"|parent_library|_target_|\"idx\"|\\u00[2-7]|\0"
)
_OBJECT = re.compile(rb'\{\s*"(?:[^"\\\0-\x1f]|\\.){1,40}"\s*:')
_LAMBDAS = frozenset({"Lambda", "__lambda__"})
_OF_KERAS = frozenset({
    "builtins", "keras", "keras_cv", "keras_hub", "keras_nlp", "tensorflow", "tf_keras",
})  # fmt: skip


def find_code(place: ScanPlace, head: bytes) -> Iterator[Scanned]:
    """Yield the code that a file of another kind has or names; `head` is its start."""
    name = place.name.lower()
    source = place.source
    if head.startswith(_HDF5):
        yield from _of_windows(place, _Patterns(place, _PYTABLES), _Objects(place))
    elif head.startswith(_SQLITE):
        problem = "an SQLite database can contain pickles, which are not looked at"
        yield unread(problem, place.member, source.base)
    elif head.startswith(_GGUF):
        yield from _of_gguf(place)
    elif _NATIVE.fullmatch(name) and place.member:
        yield _report(place, "native code", is_dangerous=True)
    elif name.endswith("saved_model.pb"):
        yield from _of_windows(place, _Patterns(place, _TENSORFLOW))
    elif _JSON.fullmatch(name):
        yield from _of_text(place, _of_json)
    elif _TEMPLATE.fullmatch(name):
        yield from _of_text(place, _of_template_file)
    elif name.endswith((".yaml", ".yml")):
        yield from _of_text(place, _of_yaml)
    elif name.endswith(".py"):
        yield from _of_text(place, _of_script if place.is_script else _of_python)


def _report(place: ScanPlace, text: str, offset: int = 0, *, is_dangerous: bool) -> Scanned:
    start = place.source.base + offset
    return Scanned(
        place.member, start, PickleNames((), start), code=FoundCode(text, start, is_dangerous)
    )


def _of_text(place: ScanPlace, read: Callable[[bytes], Iterator[_Code]]) -> Iterator[Scanned]:
    """Yield the code that a function finds in a whole text."""
    size = place.source.size()
    if size > _LARGEST_TEXT:
        problem = f"it is larger than {_LARGEST_TEXT >> 20} MiB, so its code is not looked at"
        yield unread(problem, place.member, place.source.base)
        return
    try:
        for text, harms in dict.fromkeys(read(place.source.read(0, size))):
            yield _report(place, text, is_dangerous=harms)
    except RecursionError:
        yield unread("it is nested too deeply to be read", place.member, place.source.base)


class _Patterns:
    """Finds the first match of each pattern in the windows of a file."""

    def __init__(self, place: ScanPlace, patterns: Sequence[_Pattern]) -> None:
        self._place = place
        self._left = [*patterns]

    @property
    def is_done(self) -> bool:
        """Whether no further window is needed."""
        return not self._left

    def look(self, at: int, window: bytes) -> Iterator[Scanned]:
        """Yield what a window has, which is at `at`."""
        for each in [*self._left]:
            if match := each.pattern.search(window):
                self._left.remove(each)
                start, harms = at + match.start(), each.is_dangerous
                yield _report(self._place, each.text, start, is_dangerous=harms)


class _Objects:
    """Finds the code that JSON objects in binary data name, as the config of Keras in HDF5."""

    def __init__(self, place: ScanPlace) -> None:
        self._place = place
        self._codes: list[_Code] = []
        self._decoder = json.JSONDecoder(object_pairs_hook=_make_hook(self._codes))
        self._left = _MOST_BROKEN

    @property
    def is_done(self) -> bool:
        """Whether there were too many objects that cannot be read."""
        return self._left < 0

    def look(self, at: int, window: bytes) -> Iterator[Scanned]:
        """Yield what a window has, which is at `at`."""
        text, end, place = window.decode("latin-1"), 0, self._place
        for match in _OBJECT.finditer(window):
            if match.start() < end:
                continue
            try:
                end = _find_end(self._decoder, place.source, text, match.start(), at)
            except RecursionError:
                self._left = 0
            if not end > match.start():
                self._left -= 1
            for found, harms in dict.fromkeys(self._codes):
                yield _report(place, found, at + match.start(), is_dangerous=harms)
            self._codes.clear()
            if self.is_done:
                problem = "it has too many objects of JSON that are not complete or nested deeply"
                yield unread(problem, place.member, place.source.base + at + match.start())
                return


def _of_windows(place: ScanPlace, *finders: _Patterns | _Objects) -> Iterator[Scanned]:
    """Yield what is found in data of any size, which is read once."""
    at = 0
    while window := place.source.read(at, _WINDOW):
        for each in finders:
            if not each.is_done:
                yield from each.look(at, window)
        if len(window) < _WINDOW or all(each.is_done for each in finders):
            return
        at += _WINDOW - _OVERLAP


def _find_end(decoder: json.JSONDecoder, source: ScanSource, text: str, start: int, at: int) -> int:
    """Return the end of the object at `start` of a window, which is at `at`; 0 if it has none."""
    try:
        return decoder.raw_decode(text, start)[1]
    except json.JSONDecodeError as error:
        # An object can be longer than its window.
        if error.pos < len(text) - 1 and "Unterminated" not in error.msg:
            return 0
    try:
        whole = source.read(at + start, _LARGEST_TEXT).decode("latin-1")
        return start + decoder.raw_decode(whole)[1]
    except json.JSONDecodeError:
        return 0


def _of_json(raw: bytes) -> Iterator[_Code]:
    codes: list[_Code] = []
    if _WORDS.search(raw):
        try:
            json.loads(raw, object_pairs_hook=_make_hook(codes))
        except ValueError:
            # Programs that load JSON refuse it, too.
            return
    yield from codes


def _make_hook(codes: list[_Code]) -> Callable[[_Pairs], dict[str, Any]]:
    """Return a function that adds the code that the entries of a JSON object name.

    Programs differ in which of repeated keys they use, so all entries are looked at.
    """

    def look(pairs: _Pairs) -> dict[str, Any]:
        for key, value in pairs:
            if find := _ENTRIES.get(key):
                codes.extend(find(value, pairs))
        return dict(pairs)

    return look


def _of_class(value: Any, pairs: _Pairs) -> Iterator[_Code]:
    if not isinstance(value, str):
        return
    if value in _LAMBDAS:
        yield "a Lambda layer of Keras", _has_payload(pairs)
    for key, module in pairs:
        if key == "module" and isinstance(module, str):
            yield from _list_import(f"{module}.{value}", "Keras", _OF_KERAS)


def _list_import(path: str, program: str, own: Iterable[str] = ()) -> Iterator[_Code]:
    """Yield a class that a program imports, unless it is its own or harmless."""
    if is_dangerous(path):
        yield f"{path}, which {program} imports", True
    elif path.partition(".")[0] not in own:
        yield f"{path}, which {program} imports", False


def _has_payload(pairs: _Pairs) -> bool:
    """Whether compiled code names what functions of numbers do not use."""
    for text in _BASE64.findall(json.dumps(dict(pairs)).replace("\\n", "")):
        try:
            code = base64.b64decode("".join(text.split()) + "==")
        except binascii.Error:
            continue
        if _PAYLOAD.search(code):
            return True
    return False


def _of_auto_map(value: Any, _pairs: _Pairs) -> Iterator[_Code]:
    for each in _texts(value):
        yield f"{each}, which auto_map names", False


def _texts(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value."""
    for each in value.values() if is_object(value) else value if is_list(value) else [value]:
        if is_object(each) or is_list(each):
            yield from _texts(each)
        elif isinstance(each, str):
            yield each


def _of_custom_pipelines(value: Any, _pairs: _Pairs) -> Iterator[_Code]:
    for each in _texts(value):
        yield f"{each}, which a custom pipeline names", False


def _of_pipeline_class(value: Any, _pairs: _Pairs) -> Iterator[_Code]:
    # A pipeline of diffusers itself is a name, and not a file with a name.
    if is_list(value):
        yield from _of_custom_pipelines(value, _pairs)


def _of_chat_templates(value: Any, _pairs: _Pairs) -> Iterator[_Code]:
    for each in _texts(value):
        yield from _of_template(each)


def _of_codec(value: Any, _pairs: _Pairs) -> Iterator[_Code]:
    if value in {"pickle", "numcodecs.pickle"}:
        yield "chunks that zarr unpickles", False


def _of_graph(_value: Any, _pairs: _Pairs) -> Iterator[_Code]:
    yield "a graph of torch.export", False


def _of_expression(value: Any, _pairs: _Pairs) -> Iterator[_Code]:
    # Older versions of torch evaluate expressions with sympy, which runs Python.
    if isinstance(value, str) and _EXPRESSION.search(value):
        yield f"the expression {value[:60]!r} of torch.export", True


def _of_library(value: Any, _pairs: _Pairs) -> Iterator[_Code]:
    if isinstance(value, str):
        yield from _list_import(value, "PEFT", ("transformers", "diffusers"))


def _of_target(value: Any, _pairs: _Pairs) -> Iterator[_Code]:
    if isinstance(value, str):
        yield from _list_import(value, "Hydra")


def _of_module_type(value: Any, pairs: _Pairs) -> Iterator[_Code]:
    if isinstance(value, str) and "." in value and any(key == "idx" for key, _ in pairs):
        yield from _list_import(value, "sentence-transformers", ("sentence_transformers",))


# The keys of JSON objects that name code.
_ENTRIES: dict[str, Callable[[Any, _Pairs], Iterator[_Code]]] = {
    "class_name": _of_class,
    "auto_map": _of_auto_map,
    "custom_pipelines": _of_custom_pipelines,
    "_class_name": _of_pipeline_class,
    "chat_template": _of_chat_templates,
    "id": _of_codec,
    "name": _of_codec,
    "graph_module": _of_graph,
    "expr_str": _of_expression,
    "parent_library": _of_library,
    "_target_": _of_target,
    "type": _of_module_type,
}


def _of_gguf(place: ScanPlace) -> Iterator[Scanned]:
    """Yield the code that chat templates of a GGUF header reach for."""
    try:
        metadata = gguf.read(EnclosedFile(place.path, place.source)).metadata
    except FormatError as error:
        problem = f"its chat template cannot be read: {error.reason}"
        yield unread(problem, place.member, place.source.base)
        return
    for key, value in metadata.items():
        if key.startswith(_TEMPLATE_KEY) and isinstance(value.content, str):
            for text, harms in _of_template(value.content):
                yield _report(place, text, is_dangerous=harms)


def _of_template(template: str) -> Iterator[_Code]:
    """Yield the attributes with which a chat template could leave Jinja's sandbox."""
    names = sorted({*_SPECIAL_NAMES.findall(template)})
    if names:
        yield f"a chat template that reaches for {', '.join(names[:4])}", True
    elif _COMPUTED_NAMES.search(template):
        yield "a chat template that computes the names of attributes", False


def _of_template_file(raw: bytes) -> Iterator[_Code]:
    return _of_template(raw.decode("utf-8", "replace"))


def _of_yaml(raw: bytes) -> Iterator[_Code]:
    if _TAG.search(unquote_to_bytes(raw)):
        yield "a YAML tag that creates Python objects", True
    for each in _TARGET.findall(raw):
        yield from _list_import(each.decode(), "Hydra")
    if _ESCAPE.search(raw):
        yield "a YAML text with letters that are written as escapes", False


def _of_script(raw: bytes) -> Iterator[_Code]:
    yield "TorchScript, which torch.jit.load runs", bool(_FILES_OF_TORCH.search(raw))


def _of_python(raw: bytes) -> Iterator[_Code]:
    yield "Python source", bool(_CALLS.search(raw))
