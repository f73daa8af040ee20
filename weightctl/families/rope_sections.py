"""Keys of multimodal RoPE: the rotated pairs are divided among time, height and width.

In texts all three are the position, so that the model computes the same as with plain RoPE. Keys:
llama.cpp's `rope.dimension_sections`, and transformers' `mrope_section`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.keys import Key
from weightctl.families.kinds import Exactly, WholeNumber, show_value
from weightctl.text.untyped import is_object, is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_SECTION = WholeNumber(0, 1 << 16)
_ROPE = "rope_parameters"
_UNROTATED = (
    "it does not rotate the pairs that no section of RoPE contains (in the published models of "
    "Qwen3-VL 2 of 64, those with the lowest frequencies)"
)
_INTERLEAVED = "transformers and llama.cpp always interleave the sections of RoPE in this family"


class RopeSections(NamedTuple):
    """The numbers of pairs for time, height and width."""

    time: int
    height: int
    width: int


class _SectionList(NamedTuple):
    """A list of the numbers of pairs; `length` numbers are written."""

    length: int

    def read(self, content: object) -> RopeSections:
        """Return the three numbers; a fourth one must be 0."""
        if not is_sequence(content) or len(content) not in {3, 4} or any(content[3:]):
            raise ValueError(f"is {show_value(content)}; it must be a list of three integers")
        return RopeSections(*(_SECTION.read(each) for each in content[:3]))

    @property
    def gguf_type(self) -> str:
        """The type of an array of integers."""
        return "array[i32]"

    def write(self, value: RopeSections) -> list[int]:
        """Return the numbers, with zeros after them."""
        return [*value, *[0] * (self.length - len(value))]


def section_keys(time: int, height: int, width: int, order: str = "") -> tuple[Key, ...]:
    """Return the keys of the sections, which by default have these numbers of pairs.

    If the order is `interleaved`, neighboring pairs belong to different sections; otherwise the
    pairs of a section follow one another.
    """

    def find_sections(fields: Fields) -> RopeSections:
        del fields
        return RopeSections(time, height, width)

    def is_interleaved(fields: Fields) -> bool:
        del fields
        return True

    keys = (
        Key(field="rope_sections", kind=_SectionList(3), default=find_sections, written=True,
            hugging_face=f"{_ROPE}.mrope_section"),
        Key(field="rope_sections", kind=_SectionList(4), gguf="{arch}.rope.dimension_sections"),
    )  # fmt: skip
    if order != "interleaved":
        return keys
    stated = Key(field="interleaved_sections", kind=Exactly(True, _INTERLEAVED),
                 default=is_interleaved, hugging_face=f"{_ROPE}.mrope_interleaved",
                 written=True)  # fmt: skip
    return (*keys, stated)


def find_empty_sections(fields: Fields) -> str | None:
    """Return why llama.cpp does not run a model, None if it does."""
    return None if any(fields["rope_sections"]) else "its sections of RoPE are empty"


def find_unrotated(fields: Fields) -> str | None:
    """Return what llama.cpp does not rotate, None if it rotates all pairs.

    The pairs take turns; llama.cpp does not rotate those that no section contains.
    """
    sections = fields["rope_sections"]
    places = (pair % max(sum(sections), 1) for pair in range(fields["rope_dimensions"] // 2))
    return _UNROTATED if any(place >= 3 * sections[place % 3] for place in places) else None


def with_default_rope(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the RoPE type `default` in place of the older name `mrope`."""
    found = dict(document)
    for name in (_ROPE, "rope_scaling"):
        given = found.get(name)
        if is_object(given) and "mrope" in {given.get("type"), given.get("rope_type")}:
            rest = {key: value for key, value in given.items() if key != "type"}
            found[name] = {**rest, "rope_type": "default"}
    return found
