"""Metadata that users set and remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from copying import held
from each import each
from weightctl import Plan, open_weights
from weightctl.errors import ConversionError
from weightctl.plan.metadata import Setting, change_metadata
from weightctl.weights.metadata import MetadataValue, text
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

METADATA = {
    "n": MetadataValue("u32", 1),
    "x": MetadataValue("f32", 1.0),
    "yes": MetadataValue("bool", True),
    "words": MetadataValue("array[string]", ["a"]),
    "name": MetadataValue("string", "old"),
    "plain": text("old"),
}


def changed(
    *written: str, unset: tuple[str, ...] = (), to: str = "gguf"
) -> dict[str, MetadataValue]:
    plan = Plan.copy(held({}, METADATA), to)
    return dict(change_metadata(plan, map(Setting.parse, written), unset).metadata)


@pytest.mark.parametrize(
    ("written", "key", "value"),
    [
        ("n=5", "n", MetadataValue("u32", 5)),
        ("n=0xff", "n", MetadataValue("u32", 255)),
        ("n:i64=-5", "n", MetadataValue("i64", -5)),
        ("x=0.1", "x", MetadataValue("f32", 0.10000000149011612)),
        ("x=inf", "x", MetadataValue("f32", float("inf"))),
        ("yes=false", "yes", MetadataValue("bool", False)),
        ('words=["a", "b=c"]', "words", MetadataValue("array[string]", ["a", "b=c"])),
        ("name=a=b", "name", MetadataValue("string", "a=b")),
        ("name=", "name", MetadataValue("string", "")),
        ("plain=new", "plain", MetadataValue("text", "new")),
        ("new=1", "new", MetadataValue("string", "1")),
        ("new:array[array[u8]]=[[1],[]]", "new", MetadataValue("array[array[u8]]", [[1], []])),
        ("new:text=1", "new", MetadataValue("text", "1")),
        ("n:uint8=5", "n", MetadataValue("u8", 5)),
        ("new:float32=2", "new", MetadataValue("f32", 2.0)),
    ],
)
def test_a_value_keeps_its_type_or_gets_the_one_that_is_stated(
    written: str, key: str, value: MetadataValue
) -> None:
    assert changed(written) == METADATA | {key: value}


def test_a_new_value_in_safetensors_is_a_text_of_its_own() -> None:
    assert changed("new=1", to="safetensors")["new"] == text("1")


def test_what_is_unset_is_gone() -> None:
    assert changed(unset=("n", "plain")).keys() == METADATA.keys() - {"n", "plain"}


def test_the_order_of_the_others_stays() -> None:
    assert list(changed("yes=false", "new=1")) == [*METADATA, "new"]


@each(
    ("written", "says"),
    [
        ("n", "`--set n` does not have the form"),
        ("=5", "`--set =5` does not have the form"),
        (":u32=5", "`--set :u32=5` does not have the form"),
        ("n:u9=1", "`u9` in `n:u9=1` is not a metadata type"),
        ("a:b=c", "`b` in `a:b=c` is not a metadata type"),
        ("\udcff=1", "is not UTF-8"),
        ("general.alignment:u32=4", r"`general\.alignment` cannot be 4"),
        ("n=-1", "`-1` is not a valid u32, the type of the metadata key `n`"),
        ("n=1.5", "is not a valid u32"),
        ("n=4294967296", "is not a valid u32"),
        ("n:u8=256", "is not a valid u8"),
        ("yes=1", "is not a valid bool"),
        ("x=much", "is not a valid f32"),
        ("x=1e99", "is not a valid f32"),
        ("words=a", "is not a valid array"),
        ("words=[1]", "is not a valid array"),
        ("words=" + "[" * 99999, "is not a valid array"),
        ("general.alignment:u32=3", r"`general\.alignment` cannot be 3"),
        ("general.alignment=32", r"`general\.alignment` cannot be 32 \(string\)"),
        ("split.count:u16=3", "it numbers the parts of a checkpoint"),
    ],
)
def test_what_is_not_a_value_is_refused(written: str, says: str) -> None:
    with pytest.raises(ConversionError, match=says) as caught:
        changed(written)
    assert caught.value.hint


def test_a_key_to_unset_that_is_not_there_is_reported() -> None:
    with pytest.raises(ConversionError, match="there is no metadata key `nam`") as caught:
        changed(unset=("nam",))
    assert "name" in caught.value.hint


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (("n*",), {"x", "yes", "words", "plain"}),
        (("*",), set[str]()),
        (("n*", "name"), {"x", "yes", "words", "plain"}),
        (("?",), {"yes", "words", "name", "plain"}),
    ],
)
def test_a_pattern_unsets_every_key_that_it_matches(
    patterns: tuple[str, ...], left: set[str]
) -> None:
    assert changed(unset=patterns).keys() == left


def test_a_pattern_that_matches_no_key_is_refused() -> None:
    with pytest.raises(ConversionError, match=r"there is no metadata key `z\*` to remove"):
        changed(unset=("z*",))


def test_a_key_with_brackets_is_unset_by_its_name() -> None:
    plan = Plan.copy(held({}, {"a[1]": text("x"), "a1": text("y")}), "gguf")
    assert change_metadata(plan, [], ["a[1]"]).metadata.keys() == {"a1"}


def test_a_pattern_leaves_what_weightctl_writes_itself() -> None:
    weights = held({})
    kept = {"head": text("embed"), "other": text("x")}
    plan = Plan(weights.source, "gguf", (), kept, {"head": "embed"})
    assert change_metadata(plan, [], ["*"]).metadata.keys() == {"head"}
    with pytest.raises(ConversionError, match="it is the name of a tied tensor"):
        change_metadata(plan, [], ["he*"])


@pytest.mark.parametrize(
    ("key", "content", "value"),
    [
        ("name", "{{ a }}\n", MetadataValue("string", "{{ a }}\n")),
        ("plain", "\ufeffä@", text("ä@")),
        ("n", "5\n", MetadataValue("u32", 5)),
        ("yes", "false\n", MetadataValue("bool", False)),
        ("words", '["a",\n "b"]\n', MetadataValue("array[string]", ["a", "b"])),
        ("new:array[u8]", "[1]", MetadataValue("array[u8]", [1])),
    ],
)
def test_a_value_is_read_from_a_file(
    tmp_path: Path, key: str, content: str, value: MetadataValue
) -> None:
    (tmp_path / "a=b.txt").write_text(content, "utf-8")
    assert changed(f"{key}=@{tmp_path}/a=b.txt")[key.partition(":")[0]] == value


def test_two_at_signs_are_one_of_the_value() -> None:
    assert changed("name=@@me")["name"].content == "@me"
    assert Setting.of("name", "@me").text == "@me"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none.txt", r"cannot read the file .*none\.txt of `--set n=@.*: No such file"),
        ("", "Is a directory"),
        ("latin", r"latin is not UTF-8 text, at byte 1"),
        ("words", r"the text of .*words is not a valid u32, the type of the metadata key `n`"),
    ],
)
def test_a_file_that_is_not_a_value_is_refused(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "latin").write_bytes(b"a\xe4")
    (tmp_path / "words").write_text("many words")
    with pytest.raises(ConversionError, match=says) as caught:
        changed(f"n=@{tmp_path}/{name}")
    assert caught.value.hint


def test_tied_names_are_not_metadata_to_change() -> None:
    weights = held({})
    plan = Plan(weights.source, "gguf", (), {"head": text("embed")}, {"head": "embed"})
    with pytest.raises(ConversionError, match="it is the name of a tied tensor"):
        change_metadata(plan, [], ["head"])


def test_what_was_set_is_in_the_file(tmp_path: Path) -> None:
    plan = change_metadata(
        Plan.copy(held({}, METADATA), "safetensors"), [Setting("n", None, "7")], ["x"]
    )
    save(plan, tmp_path / "a.safetensors")
    found = open_weights(tmp_path / "a.safetensors").metadata
    assert found["n"] == MetadataValue("u32", 7)
    assert "x" not in found
