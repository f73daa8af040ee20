from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("batch", "seq", "heads")
SIZES = st.fixed_dictionaries({name: st.integers(1, 9) for name in NAMES})

# An expression of dimensions, and a function that computes its expected value.
Expression = tuple[Dim, "Callable[[dict[str, int]], int]"]
LEAVES: st.SearchStrategy[Expression] = st.one_of(
    st.sampled_from(NAMES).map(lambda name: (Dim(name), lambda sizes: sizes[name])),
    st.integers(0, 9).map(lambda number: (Dim(number), lambda _: number)),
)


def combined(below: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def of(left: Expression, operator: str, right: Expression) -> Expression:
        (a, x), (b, y) = left, right
        if operator == "+":
            return a + b, lambda sizes: x(sizes) + y(sizes)
        if operator == "-":
            # Not negative for any sizes.
            return a * a + 9 - a, lambda sizes: x(sizes) ** 2 + 9 - x(sizes)
        if operator == "*":
            return a * b, lambda sizes: x(sizes) * y(sizes)
        if operator == "//":
            return a // (b + 1), lambda sizes: x(sizes) // (y(sizes) + 1)
        return a % (b + 1), lambda sizes: x(sizes) % (y(sizes) + 1)

    return st.builds(of, below, st.sampled_from(["+", "-", "*", "//", "%"]), below)


EXPRESSIONS = st.recursive(LEAVES, combined, max_leaves=6)


@given(EXPRESSIONS, SIZES)
def test_arithmetic_on_names_is_arithmetic_on_their_sizes(
    expression: Expression, sizes: dict[str, int]
) -> None:
    dim, expected = expression
    assert dim.at(sizes) == expected(sizes)


@given(EXPRESSIONS, SIZES)
def test_names_may_be_replaced_one_after_another(
    expression: Expression, sizes: dict[str, int]
) -> None:
    dim, expected = expression
    for name, size in sizes.items():
        dim = dim.substitute({name: Dim(size)})
    assert dim.is_static
    assert int(dim) == expected(sizes)


@given(EXPRESSIONS)
def test_a_dimension_depends_on_the_names_in_it(expression: Expression) -> None:
    dim, _ = expression
    assert dim.is_static == (not dim.symbols)
    assert all(name in str(dim) for name in dim.symbols)


def test_what_is_the_same_for_every_size_is_equal() -> None:
    batch, seq = Dim("batch"), Dim("seq")
    assert batch + batch == 2 * batch
    assert batch * seq == seq * batch
    assert hash(batch * seq) == hash(seq * batch)
    assert batch - batch == 0
    assert (batch + 1) * (batch - 1) == batch * batch - 1
    assert 64 * batch * seq // (16 * seq) == 4 * batch
    assert 4 * seq % 2 == 0
    assert (seq + 1) // (seq + 1) == 1


def test_what_may_differ_is_not_equal() -> None:
    assert Dim("batch") != Dim("seq")
    assert Dim("seq") // 2 != Dim("seq") // 3
    assert Dim("seq") // 2 * 2 != Dim("seq")


def test_a_dimension_reads_as_people_write_it() -> None:
    seq = Dim("seq")
    assert str(2 * Dim("batch") * seq + 1) == "2*batch*seq + 1"
    assert str(seq - 1) == "seq - 1"
    assert str((seq + 3) // 2) == "((seq + 3) // 2)"
    assert repr(seq % 4) == "Dim('(seq % 4)')"


def test_a_size_that_turns_out_negative_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dimension seq - 3 cannot have size -1"):
        (Dim("seq") - 3).at({"seq": 2})
    with pytest.raises(ValueError, match="cannot have size -2"):
        _ = Dim(1) - 3
    with pytest.raises(ValueError, match="a dimension cannot have size -1"):
        (Dim("seq") - 3).substitute({"seq": Dim(2)})


def test_what_is_negative_on_the_way_may_be_replaced() -> None:
    assert (3 - Dim("seq")).substitute({"seq": Dim(2)}) == 1
    assert (Dim("seq") - 3 + Dim("batch")).substitute({"seq": Dim(2)}) == Dim("batch") - 1


def test_a_size_that_is_not_known_is_not_a_number() -> None:
    with pytest.raises(TypeError, match="the size of dimension `seq - 1` is not defined yet"):
        int(Dim("seq") - 1)
    with pytest.raises(KeyError, match="seq"):
        Dim("seq").at({"batch": 1})


def test_nothing_is_divided_by_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        _ = Dim("seq") // 0
    with pytest.raises(ZeroDivisionError):
        _ = Dim("seq") % Dim(0)


@pytest.mark.parametrize("name", ["", "2", "a b", "batch+1", "-"])
def test_a_name_is_a_word(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid dimension name; `batch` is an example"):
        Dim(name)


def test_the_size_of_a_shape_is_the_product_of_its_dimensions() -> None:
    assert Shape(["batch", 2, "seq", 3]).size == 6 * Dim("batch") * Dim("seq")
    assert Shape(["batch", 2]).at({"batch": 5}) == (5, 2)
    assert Shape(["batch", 2]).substitute({"batch": Dim("b")}) == ["b", 2]
    assert not Shape(["batch", 2]).is_static
    assert Shape().size == 1


@pytest.mark.parametrize("times", [1, 3])
def test_many_nested_quotients_take_no_time(times: int) -> None:
    start = process_time()
    dim, same, size = Dim("seq"), Dim("seq"), 10**6
    for _ in range(300):
        dim, same = dim // 2 * times + 1, same // 2 * times + 1
        size = size // 2 * times + 1
    assert dim == same
    assert hash(dim) == hash(same)
    assert dim.at({"seq": 10**6}) == size == int(dim.substitute({"seq": Dim(10**6)}))
    assert dim.symbols == {"seq"}
    assert process_time() - start < 1


def test_a_dimension_that_has_itself_twice_in_it_again_and_again_takes_no_time() -> None:
    start = process_time()
    dim, size = Dim("seq"), 10**6
    for _ in range(60):
        dim, size = dim // 2 + dim // 3, size // 2 + size // 3
    assert dim.at({"seq": 10**6}) == size
    assert dim.symbols == {"seq"}
    assert len(str(dim)) < 100_000
    assert process_time() - start < 1


def test_a_quotient_of_a_quotient_is_one() -> None:
    seq = Dim("seq")
    assert seq // 2 // 3 == seq // 6
    assert (seq // 2 + 1) // 3 == (seq + 2) // 6
    assert (seq // 2 - Dim("batch")) // 3 == (seq - 2 * Dim("batch")) // 6


def test_equal_sums_of_quotients_read_alike() -> None:
    def made() -> Dim:
        return Dim("a") // 2 + Dim("b") // 3 + Dim("c") % 4

    assert str(made()) == str(made())
    assert hash(made()) == hash(made())
