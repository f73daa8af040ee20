"""A local store of Xet: what `hf_xet` writes to `local:///dir`, found by SHA-256."""

from __future__ import annotations

import os
import struct
import tempfile
from typing import TYPE_CHECKING, Any

from servers.blobs import Blob

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = 48
_ENTRY = 48
_HAS_VERIFICATION = 1 << 31
_HAS_METADATA = 1 << 30


class XetStore:
    """Files in a directory, in chunks that are stored once. Needs the package hf_xet."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._session: Any = None

    @property
    def url(self) -> str:
        """The URL that clients get instead of that of a CAS server."""
        return f"local://{self.directory}"

    def put(self, content: bytes) -> str:
        """Store content; return its Xet hash."""
        import hf_xet  # type: ignore[import-untyped]  # the package has no types

        with self._open().new_upload_commit(endpoint=self.url) as commit:
            handle = commit.start_upload_bytes(content, sha256=hf_xet.COMPUTE_SHA256)
        found: str = handle.result().xet_info.hash
        return found

    def find(self, sha256: str) -> str | None:
        """Return the Xet hash of the file that has this SHA-256, if it is stored."""
        return next((hash_ for hash_, digest in self._files() if digest == sha256), None)

    def get(self, xet_hash: str, size: int) -> Blob:
        """Return the bytes of a file."""
        import hf_xet

        with tempfile.TemporaryDirectory(dir=self.directory) as directory:
            path = os.path.join(directory, "file")
            with self._open().new_file_download_group(endpoint=self.url) as group:
                group.start_download_file(hf_xet.XetFileInfo(xet_hash, size), path)
            # The open file outlives its name.
            return Blob.of_file(path)

    @property
    def bytes_stored(self) -> int:
        """The bytes of all stored chunks, which deduplication makes fewer."""
        return sum(
            os.path.getsize(os.path.join(root, name))
            for root, _, names in os.walk(self.directory)
            for name in names
            if name.startswith("default.") and not name.endswith(".tagset")
        )

    def _open(self) -> Any:
        import hf_xet

        if self._session is None:
            self._session = hf_xet.XetSession()
        return self._session

    def _files(self) -> Iterator[tuple[str, str]]:
        """Yield the Xet hash and the SHA-256 of each file in the shards of the store.

        A shard begins with a header and a list of files. A file is a header (hash, flags, number
        of entries), its entries, and if the flags say so as many verifications, and metadata that
        begin with the SHA-256.
        """
        shards = os.path.join(self.directory, "xet", "xorbs", "shards")
        for name in sorted(os.listdir(shards)) if os.path.isdir(shards) else []:
            if not name.endswith(".mdb"):
                continue
            with open(os.path.join(shards, name), "rb") as file:
                content = file.read()
            at = _HEADER
            while (hash_ := content[at : at + 32]) != b"\xff" * 32:
                flags, entries = struct.unpack_from("<II", content, at + 32)
                at += _ENTRY * (1 + entries * (2 if flags & _HAS_VERIFICATION else 1))
                if flags & _HAS_METADATA:
                    yield _hexadecimal(hash_), _hexadecimal(content[at : at + 32])
                    at += _ENTRY


def _hexadecimal(stored: bytes) -> str:
    """Return a hash as text: Xet writes it as four integers of 64 bits."""
    return "".join(f"{word:016x}" for word in struct.unpack("<4Q", stored))
