from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightctl import WeightctlError
from weightctl.text.sizes import format_count, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0B", 0), ("1000000b", 10**6), ("7B", 7), ("5k", 5000), ("5kB", 5000), ("5KiB", 5120),
        ("5GB", 5 * 10**9), ("5G", 5 * 10**9), ("5GiB", 5 << 30), ("5gib", 5 << 30),
        ("1.5MiB", 3 << 19), (" 2 TB ", 2 * 10**12), ("1PB", 10**15), ("0.5B", 0),
    ],
)  # fmt: skip
def test_a_size_is_read_in_decimal_and_binary_units(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@given(st.integers(0, 10**6))
def test_a_decimal_fraction_is_read_exactly(hundredths: int) -> None:
    assert parse_size(f"{hundredths // 100}.{hundredths % 100:02}GB") == hundredths * 10**7


@given(st.integers(0, 1 << 80))
def test_any_number_of_bytes_is_read_exactly(nbytes: int) -> None:
    assert parse_size(f"{nbytes}B") == nbytes


@pytest.mark.parametrize("text", ["5", " 5 ", "0", "1.5", "1000000"])
def test_a_number_without_a_unit_is_an_error_that_shows_what_to_write(text: str) -> None:
    with pytest.raises(WeightctlError, match=f"the size `{text.strip()}` has no unit") as caught:
        parse_size(text)
    assert f"{text.strip()}GB" in caught.value.hint


def test_a_number_without_a_unit_is_of_the_unit_that_its_reader_has() -> None:
    assert parse_size("4096", unit="B") == 4096
    assert parse_size("4KiB", unit="B") == 4096


@pytest.mark.parametrize("text", ["", "GB", "5XB", "-1", "1e6", "5 5", "1.GB", ".5GB", "5GBs"])
def test_what_is_not_a_size_is_an_error_that_shows_some(text: str) -> None:
    with pytest.raises(WeightctlError, match="is not a size") as caught:
        parse_size(text)
    assert "5GB" in caught.value.hint


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (1005, "1.00 kB"), (9994, "9.99 kB"),
        (9995, "10.0 kB"), (98_400_000, "98.4 MB"), (99_950, "100 kB"), (999_499, "999 kB"),
        (999_500, "1.00 MB"), (2_200_000_000, "2.20 GB"), (3 * 10**15, "3.00 PB"),
        (12_345 * 10**15, "12345 PB"),
    ],
)  # fmt: skip
def test_a_size_is_written_with_three_digits(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (272, "272"), (1000, "1.00 K"), (134_515_008, "135 M"), (7_000_000_000, "7.00 B")],
)
def test_a_count_is_written_with_three_digits(count: int, text: str) -> None:
    assert format_count(count) == text


@given(st.integers(0, 10**18))
def test_a_written_size_reads_back_within_its_three_digits(nbytes: int) -> None:
    assert abs(parse_size(format_size(nbytes)) - nbytes) <= nbytes / 200
