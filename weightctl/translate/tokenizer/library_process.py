"""The `tokenizers` library in a process of its own, because a tokenizer.json has patterns to run.

A pattern or a replacement can take any time and memory. The process has limits that real tokenizers
do not reach.
"""

from __future__ import annotations

import json
import sys
import time
import weakref
from subprocess import DEVNULL, PIPE, Popen
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, cast

from weightctl.errors import TokenizerError
from weightctl.system.children import (
    limit_process,
    receive_message,
    send_message,
    start_python,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_PROGRAM = "from weightctl.translate.tokenizer.library_process import main; main()"
_HINT = "use token ids instead, which need no tokenizer"
# Limits: bytes of memory, and seconds of processor time for a call, with one more for this many
# characters. Real tokenizers need less than 1 GiB, and encode a million characters a second.
_MEMORY, _SECONDS, _PER_SECOND = 1 << 31, 10, 100_000


class TokenizerProcess:
    """A tokenizer of the `tokenizers` library; it ends with this object.

    Calls raise `TokenizerError` if the library rejects the document or a text, or if the process
    reaches a limit; `where` names the document.
    """

    def __init__(self, document: bytes, where: str) -> None:
        self._where = where
        self._process = start_python(
            "-c", _PROGRAM, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, is_untrusted=True
        )
        weakref.finalize(self, _end, self._process)
        self._lock = Lock()
        self.count: int = self._ask(document)

    def encode(self, text: str, *, is_whole: bool) -> list[int]:
        """Return the tokens of a text, with those added around it if it `is_whole`."""
        return cast("list[int]", self._ask_json("encode", text, is_whole))

    def decode(self, token: int) -> str:
        """Return the text of a token."""
        return str(self._ask_json("decode", int(token)))

    def find(self, content: str) -> int | None:
        """Return the id of a token; None if there is none."""
        return cast("int | None", self._ask_json("find", content))

    def _ask_json(self, *words: Any) -> Any:
        return self._ask(json.dumps(words).encode())

    def _ask(self, request: bytes) -> Any:
        try:
            with self._lock:
                send_message(cast("IO[bytes]", self._process.stdin), request)
                answer = receive_message(cast("IO[bytes]", self._process.stdout))
        except OSError:  # the process has ended
            answer = b""
        if not answer:
            raise TokenizerError(
                f"{self._where}: the tokenizer needs more than {_SECONDS} s or "
                f"{_MEMORY >> 30} GiB, or makes its library fail",
                hint=f"check its normalizer and its patterns; {_HINT}",
            )
        result, problem = json.loads(answer)
        if problem:
            raise TokenizerError(
                f"{self._where}: the package `tokenizers` rejects the tokenizer: {problem}",
                hint=_HINT,
            )
        return result


def _end(process: Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def main() -> None:
    """Answer the calls that weightctl sends through the pipe; called in the process."""
    from tokenizers import Tokenizer

    tokenizer: Any = None

    def load(document: bytes) -> int:
        nonlocal tokenizer
        tokenizer = Tokenizer.from_buffer(document)
        # Limits from training or serving do not apply to texts here.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return int(tokenizer.get_vocab_size())

    def encode(text: str, is_whole: bool) -> list[int]:  # sent by position
        return list(tokenizer.encode(text, add_special_tokens=is_whole).ids)

    def decode(token: int) -> str:
        return str(tokenizer.decode([token], skip_special_tokens=False))

    def find(content: str) -> int | None:
        return cast("int | None", tokenizer.token_to_id(content))

    calls: dict[str, Callable[..., Any]] = {"encode": encode, "decode": decode, "find": find}
    while request := receive_message(sys.stdin.buffer):
        allowed = _SECONDS + len(request) // _PER_SECOND
        limit_process(_MEMORY, int(time.process_time()) + allowed, mapped=_MEMORY)
        answer: tuple[Any, str]
        try:
            if tokenizer is None:
                answer = load(request), ""
            else:
                name, *words = json.loads(request)
                answer = calls[name](*words), ""
        except BaseException as error:  # noqa: BLE001  # a panic of the library is one
            answer = None, f"{error!s:.300}"
        send_message(sys.stdout.buffer, json.dumps(answer).encode())
