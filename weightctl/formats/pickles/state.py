"""The state of a scan within a pickle: what is on its stack, and what was found so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.formats.pickles.abstract import UNKNOWN, Reference
from weightctl.formats.pickles.limits import LimitError
from weightctl.formats.pickles.literals import MODULES
from weightctl.formats.pickles.memo import Memo

if TYPE_CHECKING:
    from weightctl.formats.pickles.abstract import SizedObject

__all__ = ["LARGEST_STACK", "LONGEST_NAME", "State"]

LARGEST_STACK = 1 << 24
LONGEST_NAME = 512


class State:
    """The stack, the marks and the memo of a pickle, and what was found in it so far.

    `array` is set where joblib puts the bytes of an array behind an opcode.
    """

    __slots__ = (
        "acts",
        "array",
        "found",
        "identities",
        "marks",
        "memo",
        "problem",
        "result",
        "stack",
    )

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo = Memo()
        self.found: dict[str, int] = {}
        self.identities: dict[Any, None] = {}
        self.problem = ""
        self.acts = False
        self.result: Any = UNKNOWN
        self.array: SizedObject | None = None

    def push(self, value: Any) -> None:
        """Push an object."""
        if len(self.stack) >= LARGEST_STACK:
            raise LimitError(f"it has more than {LARGEST_STACK} objects on its stack")
        self.stack.append(value)

    def require(self, count: int) -> None:
        """Refuse to take more objects than there are above the last mark."""
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < count:
            raise ValueError("an opcode needs an object, but the stack is empty")

    def pop(self) -> Any:
        """Take the last object."""
        self.require(1)
        return self.stack.pop()

    def take(self, count: int) -> list[Any]:
        """Take the last objects."""
        self.require(count)
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def since_mark(self) -> list[Any]:
        """Take all objects above the last mark, and the mark."""
        if not self.marks:
            raise ValueError("an opcode needs a mark, but the stack has none")
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def name(self, module: str, name: str, start: int) -> None:
        """Push a global, and note its name."""
        module = MODULES.get(module, module)
        # One long text may stand before each of many others.
        path = f"{module[:LONGEST_NAME]}.{name[:LONGEST_NAME]}"
        self.found.setdefault(path, start)
        self.push(Reference(path))
