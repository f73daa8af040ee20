from typing import Any, TypeAlias

from numpy.typing import NDArray
from typing_extensions import Buffer

# NumPy's arrays are buffers, which their types say only from Python 3.12 on.
Memory: TypeAlias = Buffer | NDArray[Any]

def levels() -> tuple[str, ...]: ...
def kernels(level: int, /) -> dict[str, tuple[bool, bool, bool]]: ...
def encode(
    level: int,
    name: str,
    rows: Memory,
    columns: int,
    importance: Memory | None,
    out: Memory,
    /,
) -> None: ...
def set_grid(name: str, levels: Memory, distances: int, /) -> None: ...
def decode(level: int, name: str, blocks: Memory, out: Memory, /) -> None: ...
def transcode(
    level: int,
    source: str,
    target: str,
    raw: Memory,
    columns: int,
    importance: Memory | None,
    out: Memory,
    counts: bool,
    measures: bool,
    zero_nonfinite: bool,
    /,
) -> tuple[int, float, int, int, int, float, float]: ...
def count_words(words: Memory, step: int, counts: Memory, /) -> None: ...
def reduce_blocks(
    level: int,
    source: str,
    raw: Memory,
    columns: int,
    size: int,
    low: Memory | None,
    high: Memory,
    /,
) -> None: ...
def round_blocks(
    level: int,
    source: str,
    raw: Memory,
    columns: int,
    size: int,
    kind: str,
    scales: Memory,
    offsets: Memory | None,
    most: float,
    out: Memory,
    /,
) -> tuple[float, float]: ...
def multiply_rows(
    level: int,
    name: str,
    blocks: Memory,
    columns: int,
    vectors: Memory,
    first: int,
    out: Memory,
    threads: int,
    /,
) -> None: ...
def compare_runs(
    level: int, own: Memory, reference: Memory, out: Memory, /
) -> tuple[float, float]: ...
def find_doubtful(
    level: int,
    name: str,
    values: Memory,
    blocks: Memory,
    codes: tuple[Memory, int, int, Memory | None, int, int, bool, bool, bool, Memory],
    out: Memory,
    /,
) -> None: ...
def factor_hessian(level: int, hessian: Memory, n: int, /) -> None: ...
def round_columns(
    level: int,
    factor: tuple[Memory, int, int],
    columns: tuple[Memory, Memory, Memory],
    scales: tuple[Memory, Memory],
    parts: tuple[object, ...],
    /,
) -> None: ...
def refine_codes(
    level: int,
    hessian: tuple[Memory, int, int],
    columns: tuple[Memory, Memory],
    scales: tuple[Memory, Memory, Memory | None, Memory | None],
    parts: tuple[object, ...],
    /,
) -> None: ...
def multiplies_bf16() -> bool: ...
def multiply_bf16(
    rows: Memory, columns: int, vectors: Memory, out: Memory, threads: int, /
) -> None: ...
def pack_pairs(level: int, codes: Memory, high_first: bool, out: Memory, /) -> None: ...
def transpose_words(level: int, words: Memory, columns: int, out: Memory, /) -> None: ...
def pack_row_groups(
    level: int, codes: Memory, columns: int, order: Memory, out: Memory, /
) -> None: ...
