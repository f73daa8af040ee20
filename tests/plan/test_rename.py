"""Renaming of tensors by rules of users."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import weights_of
from build import safetensors_of
from weightctl import Plan, Weights, open_weights
from weightctl.errors import ConversionError
from weightctl.plan.rename import read_renamings, rename
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("encoder.0.query", "encoder.1.query", "encoder.10.key", "head")


def numbered(names: tuple[str, ...] = NAMES) -> Weights:
    """Return a tree in which the value of each tensor is its number."""
    return weights_of({name: np.full(2, i, np.float32) for i, name in enumerate(names)})


def renamed(folder: Path, rules: str, weights: Weights | None = None) -> Weights:
    path = folder / "rules.toml"
    path.write_text(rules)
    return rename(weights or numbered(), read_renamings(str(path)))


def numbers(weights: Weights) -> dict[str, float]:
    return {name: float(node.data().to_numpy()[0]) for name, node in weights.items()}


def test_captures_stand_in_the_new_name(tmp_path: Path) -> None:
    rules = r"""
    [rename]
    '^encoder\.(\d+)\.(?P<part>.*)' = 'layers.\1.attention.\g<part>'
    """
    assert numbers(renamed(tmp_path, rules)) == {
        "layers.0.attention.query": 0,
        "layers.1.attention.query": 1,
        "layers.10.attention.key": 2,
        "head": 3,
    }


def test_the_first_rule_that_is_found_in_a_name_decides(tmp_path: Path) -> None:
    rules = r"""
    [rename]
    'encoder\.0' = 'first'
    'encoder|query' = 'x'
    """
    assert set(renamed(tmp_path, rules).header.tensors) == {"first.query", "x.1.x", "x.10.key",
                                                             "head"}  # fmt: skip


def test_names_can_be_exchanged(tmp_path: Path) -> None:
    exchanged = renamed(tmp_path, "[rename]\n'^a$' = 'b'\n'^b$' = 'a'", numbered(("a", "b")))
    assert numbers(exchanged) == {"a": 1, "b": 0}


def test_a_rule_that_is_found_in_no_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"no tensor's name matches `decoder`") as caught:
        renamed(tmp_path, "[rename]\nencoder = 'e'\ndecoder = 'd'")
    assert "weightctl ls --flat" in caught.value.hint


def test_a_rule_that_an_earlier_one_leaves_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="or earlier rules rename all"):
        renamed(tmp_path, "[rename]\nencoder = 'e'\nquery = 'q'")


def test_two_tensors_of_one_name_are_refused_with_both(tmp_path: Path) -> None:
    both = r"`encoder\.0\.query` and `encoder\.1\.query` would have the same name, `encoder\.query`"
    with pytest.raises(ConversionError, match=both):
        renamed(tmp_path, "[rename]\n'\\.\\d+' = ''")


def test_a_new_name_that_another_tensor_keeps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="would have the same name, `head`"):
        renamed(tmp_path, "[rename]\n'^encoder.10.key$' = 'head'")


def test_a_tensor_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="`head` would have an empty name"):
        renamed(tmp_path, "[rename]\nhead = ''")


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("encoder", "is not valid TOML"),
        ("a = 1", "must have one table, `rename`"),
        ("[rename]", "must have one table, `rename`"),
        ("rename = 'a'", "must have one table, `rename`"),
        ("[rename]\na = 'b'\n[types]\na = 'F32'", "must have one table, `rename`"),
        ("[rename]\nhead = 5", "the replacement for `head` is not a string"),
        ("[rename]\n'(' = 'b'", r"`\(` is not a valid regular expression"),
        ("[rename]\n'head' = '\\1'", "invalid group reference 1"),
        ("[rename]\n'head' = '\\g<part>'", "unknown group name 'part'"),
        ("[rename]\n'(?x)head # all of it' = '\\1'", "invalid group reference 1"),
        ("[rename]\n'head' = '\\q'", r"bad escape \\q"),
    ],
)
def test_what_is_not_a_file_of_rules_says_why_and_how_one_is_written(
    tmp_path: Path, rules: str, says: str
) -> None:
    with pytest.raises(ConversionError, match=says) as caught:
        renamed(tmp_path, rules)
    assert str(tmp_path / "rules.toml") in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "rules",
    ['[rename]\n"^encoder\\.(\\d+)" = "x"', '[rename]\n"\\bhead" = "x"', "[rename]\n'(' = ''"],
)
def test_a_regular_expression_in_double_quotes_is_pointed_at_single_ones(
    tmp_path: Path, rules: str
) -> None:
    with pytest.raises(ConversionError) as caught:
        renamed(tmp_path, rules)
    assert "in 'single quotes'" in caught.value.hint


def test_rules_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"cannot read .*rules\.toml: No such file"):
        read_renamings(str(tmp_path / "rules.toml"))


def test_a_file_too_large_for_rules_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(ConversionError, match="is too large for a file of naming rules"):
        read_renamings(str(tmp_path / "rules.toml"))


def test_a_tied_name_is_renamed_and_stays_tied(tmp_path: Path) -> None:
    path = tmp_path / "in.safetensors"
    embedding = {"embed": ("F32", (2,), b"12345678")}
    path.write_bytes(safetensors_of(embedding, {"head": "embed", "format": "pt"}))
    rules = "[rename]\n'^' = 'model.'"
    save(
        Plan.copy(renamed(tmp_path, rules, open_weights(path)), "safetensors"),
        tmp_path / "out.safetensors",
    )
    out = open_weights(tmp_path / "out.safetensors")
    assert dict(out.header.aliases) == {"model.head": "model.embed"}
    assert out["model.head"].data().to_numpy().tobytes() == b"12345678"


def test_metadata_and_encodings_stay(tmp_path: Path) -> None:
    path = tmp_path / "in.safetensors"
    path.write_bytes(safetensors_of({"a": ("BF16", (2,), b"1234")}, {"author": "somebody"}))
    out = renamed(tmp_path, "[rename]\na = 'b'", open_weights(path))
    assert out.metadata["author"].content == "somebody"
    assert out.b.info.encoding.name == "BF16"
