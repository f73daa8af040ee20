from __future__ import annotations

import pytest

from weightctl.text.folding import group_alike, mask_numbers


@pytest.mark.parametrize(
    ("name", "masked"),
    [
        ("model.layers.12.mlp.experts.3.up.weight", "model.layers.N.mlp.experts.N.up.weight"),
        ("0.weight", "N.weight"),
        ("blk.7", "blk.N"),
        ("layer1.conv2.weight", "layer1.conv2.weight"),
        (
            "`layers.3.bias` is missing, of shape [4, 2]",
            "`layers.N.bias` is missing, of shape [4, 2]",
        ),
    ],
)
def test_whole_segments_are_masked(name: str, masked: str) -> None:
    assert mask_numbers(name) == masked


def test_the_first_number_alone_is_replaced_where_one_is_asked_for() -> None:
    assert mask_numbers("layers.5.experts.6.up", "0", most=1) == "layers.0.experts.6.up"


def test_groups_are_in_the_order_of_their_first_items() -> None:
    groups = group_alike(["b.1.w", "a.1.w", "b.2.w"], mask_numbers)
    assert groups == [["b.1.w", "b.2.w"], ["a.1.w"]]
