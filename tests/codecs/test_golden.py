"""Encoded bytes, pinned where ggml is not at hand to compare with.

The digests are of what `ggml_quantize_chunk` of xllamacpp 2026.10.11549 (x86-64) makes of `ROWS`
and `IMPORTANCE`, which are integer arithmetic, so that they are the same everywhere. Those of IQ3_S
are of weightctl's own bytes: ggml's differ in the one block that begins with zeros.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rows import twins
from weightctl.codecs import definition
from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32


def integers(count: int, state: int) -> NDArray[np.int64]:
    """Return 16-bit integers from -2**15: a linear congruential generator's upper halves."""
    drawn: list[int] = []
    for _ in range(count):
        state = (1664525 * state + 1013904223) % 2**32
        drawn.append((state >> 16) - 2**15)
    return np.array(drawn, np.int64)


def rows() -> F32:
    """Sums of four draws, each 32 of them scaled by another power of two; some zeros; (8, 1024)."""
    bell = integers(4 * 8 * 1024, 1).reshape(4, 8, 32, 32).sum(axis=0)
    powers = integers(8 * 32, 2).reshape(8, 32, 1) % 9 - 24
    numbers: F32 = np.ldexp(bell.astype(np.float32), powers).reshape(8, 1024)
    numbers[3, 256:320] = 0
    return numbers


def importance() -> F32:
    """One weight per column, above 0 and at most 1; (1024,)."""
    return ((integers(1024, 3) + 2**15 + 1) / np.float64(2**16)).astype(np.float32)


DIGESTS = {
    ("Q8_0", False): "0c6a78b78469597b78ccff194882591052414c30f5c43fb397087bcd28f2b954",
    ("Q8_0", True): "0c6a78b78469597b78ccff194882591052414c30f5c43fb397087bcd28f2b954",
    ("Q4_0", False): "61293c7f67281812e70b42b2b1e38457541b15a57575ca76f05c81b55ea80867",
    ("Q4_0", True): "1972fcfd20c6382baa4461d7ce7a71761e059bb153ff68717e6470c98e9cac55",
    ("Q4_1", False): "72a594534dccfb5d388dcb469381c87ef21f46390fc402429f62f5e249ee04a8",
    ("Q4_1", True): "5087701c9229f05e93015e9743b53a121b8b8c6f1fc805fe2e544b6579c85d51",
    ("Q5_0", False): "5528b4b35c005ab86900e5b1879288de3e444178cbc1a20144c7e075a31f8d02",
    ("Q5_0", True): "7da99b583aaa4f33b47abc39aa7b35c621c0624cfbc2bf2cb3b89cbb557d1c58",
    ("Q5_1", False): "a8efc4ee204cc79d69ad18d75b3027a1fd0e1ee6e497c96edde1f7929bdf2843",
    ("Q5_1", True): "1b4b0707b1ff9e5885bc786e1b994a9b446cc1b8adbfea1235ac2404ab92f7dc",
    ("Q2_K", False): "c5c6774b994c8d26fac4021fd0b6c90659581230c29eee5a0328be152af75b51",
    ("Q2_K", True): "26897eacfabee051fe51478d31aba40b9ff2437ae8ebe898f3b9371e6e593605",
    ("Q3_K", False): "aaf6def3ccefe1617f56f000f1c44fc94b77539851d21d71e5f3c78b4640e335",
    ("Q3_K", True): "5bc1e5db43a593bfc33ba444c34a9d4a48878efbfc3fa9a0523d011c4aef69f9",
    ("Q4_K", False): "2be7a711612665cc78b4ac9dd75bdd22fab48ceffae6c4b0e03a0e5727c37618",
    ("Q4_K", True): "0c5a7469caca1dce1db455f0018a80f83464dd7d081a73db1072b338fa115e15",
    ("Q5_K", False): "509bdbb03563906b6f009f3a7be3ccf133175d502f53d529fb536ff3e4dd79fe",
    ("Q5_K", True): "d6fdc613cb55bc3df8dcb978861220ffdaeffdce4eb98dd60d99512deb34742f",
    ("Q6_K", False): "d91e1196f1679db81331205bcfa08139342421e36f6019f9277dfc996c09e034",
    ("Q6_K", True): "bbcb59ea74a885a616d271176b4ba9b42338b746878859f66b5a9a59c0377563",
    ("Q1_0", False): "e9008c734e17331966ab2ff463fd1bd1016f497cb8d129d1ef4ee9cab6d45472",
    ("Q1_0", True): "e9008c734e17331966ab2ff463fd1bd1016f497cb8d129d1ef4ee9cab6d45472",
    ("Q2_0", False): "759465ed1696f9ff0d569ddb95a386c6cb2ceb8f0636438e122c5029d3c91a7b",
    ("Q2_0", True): "759465ed1696f9ff0d569ddb95a386c6cb2ceb8f0636438e122c5029d3c91a7b",
    ("IQ1_S", True): "665282fc21ef9c312d009fcd625ac53ec54a36114d925625e4c50c5f09804d31",
    ("IQ1_M", False): "ab5704f9499ac6ca623e50a63e5626c15db3984d775367d9a17b74925196b6f4",
    ("IQ1_M", True): "a85825d8f7261a70ba08207f8c5d294df12cc70ef58b91d778655bb9c0237d5d",
    ("IQ2_XXS", True): "8cf2e64d9d1aacab1e3abc6f1cf1adc6af1321817023656cbd40ed700bdcd117",
    ("IQ2_XS", True): "b4d2ebde2b832ff0389dc9605acb49b24d7c7e28928c46f24e062833d4b07452",
    ("IQ2_S", False): "f20ca046c98ad701cd4189056e6d9bd1b78713e4dff05139adaf353b3d37826b",
    ("IQ2_S", True): "f4bb5a53f4c0e699e779a3ed5c574c700ed44ee861818cdd095023ae5b49df6b",
    ("IQ3_XXS", False): "e890d3feacb84af6a41e58bfbd712cab15a92c14c2c62e6e24fd1711427a82bd",
    ("IQ3_XXS", True): "37217ff11fd4543b95de214f3286fc444115d564f9b193b0ac2097ce121a3aed",
    ("IQ3_S", False): "727236fa33e45cfbb0413db895b38c409eb91c2d2fcb0fca189f135b9e1af1d4",
    ("IQ3_S", True): "fa743526872f029d18a9f90b2d454606c4b0152bbf9ed207a0dbcbc270377752",
    ("IQ4_NL", False): "fbf2563b44e229ef9d65d95c0a3015c88b530257a4db18210b32f9feeee24c41",
    ("IQ4_NL", True): "1f576c010319d39202a5ee42793dac0e0d37459b86df29298fcd078475b91cab",
    ("IQ4_XS", False): "aac06fa8554911e9b61a74fe98a2b4f7b5bcea65020d05197ebcd2139eb0a7d6",
    ("IQ4_XS", True): "beecef4097349512733642e579f3d3dd3b021a783ae6acc5c87449518a7fe4c1",
    ("TQ1_0", False): "382a0dd0336a47a4ee4ef2e3d5b6fd40641119d0f4828e6c1c2af42e327a5adf",
    ("TQ1_0", True): "382a0dd0336a47a4ee4ef2e3d5b6fd40641119d0f4828e6c1c2af42e327a5adf",
    ("TQ2_0", False): "81e1bdb6c46cb02466d5c4c5f75532ad78f6882177588683d0d76e20296f5a42",
    ("TQ2_0", True): "81e1bdb6c46cb02466d5c4c5f75532ad78f6882177588683d0d76e20296f5a42",
    ("MXFP4", False): "ff6bea3a299cac9d370aba4f24ddda41bdb74feccc3bccc109ebe4a7b4575303",
    ("MXFP4", True): "ff6bea3a299cac9d370aba4f24ddda41bdb74feccc3bccc109ebe4a7b4575303",
    ("NVFP4", False): "4c56fd171bfac58fc46d177214ecbf2649e2e9191fafbd70753e6c5551f83584",
    ("NVFP4", True): "4c56fd171bfac58fc46d177214ecbf2649e2e9191fafbd70753e6c5551f83584",
}


@pytest.mark.parametrize(("encoding", "weighted"), DIGESTS)
def test_encoding_gives_the_bytes_ggml_gave(encoding: str, weighted: bool) -> None:
    kind = ENCODINGS[encoding]
    for name, codec in twins(encoding):
        out = np.zeros((8, 1024 // kind.block * kind.size), np.uint8)
        codec.encode(rows(), importance() if weighted else None, out)
        assert sha256(out.tobytes()).hexdigest() == DIGESTS[encoding, weighted], name


@pytest.mark.parametrize("encoding", sorted({name for name, _ in DIGESTS}))
def test_blocks_have_the_size_that_the_table_says(encoding: str) -> None:
    codec: Any = definition(ENCODINGS[encoding])
    assert codec.block_dtype.itemsize == ENCODINGS[encoding].size
