"""How often a proof misses one changed bit of a block, by type: codes, and scales.

    python tests/bench/proof_misses.py [BLOCKS]

Blocks are those of an encoder with an importance matrix that the proof does not know. Without a
matrix, or if it is given, each block is encoded again, and no change is missed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import numpy as np

from weightctl.codecs import codec, definition
from weightctl.dtype import ENCODINGS
from weightctl.verify.proof.codes import find_layout, judge_blocks

if TYPE_CHECKING:
    from weightctl.codecs.base import BlockCodec

WIDTH = 4096


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    random = np.random.default_rng(0)
    print("| type | codes missed | scales missed | of these, the most that values move |")
    print("| --- | --: | --: | --: |")
    for encoding in ENCODINGS.values():
        layout = find_layout(encoding)
        if layout is None or not encoding.takes_importance:
            continue
        rows = -(-count * encoding.block // WIDTH)
        values = (random.standard_t(5, (rows, WIDTH)) * 0.02).astype(np.float32)
        importance = np.exp(random.normal(0, 1.5, WIDTH)).astype(np.float32)
        raw = np.empty((rows, encoding.row_bytes(WIDTH)), np.uint8)
        codec(encoding).encode(values, importance, raw)
        blocks, stored = values.reshape(-1, encoding.block), raw.reshape(-1, encoding.size)
        block = np.zeros(1, cast("BlockCodec", definition(encoding)).block_dtype)
        for name in layout.fields:
            block[name].view(np.uint8)[...] = 0xFF
        is_code = np.unpackbits(block.view(np.uint8)).astype(bool)
        missed = []
        for places in (np.flatnonzero(is_code), np.flatnonzero(~is_code)):
            bits = random.choice(places, len(stored))
            changed = stored.copy()
            changed[np.arange(len(stored)), bits // 8] ^= (128 >> bits % 8).astype(np.uint8)
            found = judge_blocks(blocks, changed, encoding)
            missed.append((changed, ~found.wrong & ~found.unusual))
        (_, of_codes), (changed, of_scales) = missed
        own, other = (np.empty(blocks.shape, np.float32) for _ in range(2))
        codec(encoding).decode(stored, own)
        codec(encoding).decode(changed, other)
        moved = np.linalg.norm(other - own, axis=1) / np.linalg.norm(own, axis=1)
        most = moved[of_scales].max(initial=0)
        print(
            f"| {encoding} | {of_codes.mean():.2%} | {of_scales.mean():.2%} | {most:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
