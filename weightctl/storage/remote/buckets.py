"""Objects in the buckets of Amazon S3, Google Cloud Storage and Azure Blob Storage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import obstore

from weightctl.errors import OutputError
from weightctl.storage.location import split_url
from weightctl.storage.remote.bucket_clients import open_bucket
from weightctl.storage.remote.store import RemoteEntry, RemoteStore
from weightctl.storage.remote.web import fetch_range, object_of
from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.storage.base import Uploads
    from weightctl.storage.remote.reader import Fetch, RemoteObject

# The classes that write objects, by URL scheme, which is also the name of the extra with their
# dependencies.
_WRITERS = {
    "s3": "weightctl.storage.remote.s3_uploads:S3Uploads",
    "gs": "weightctl.storage.remote.gcs_uploads:GCSUploads",
    "az": "weightctl.storage.remote.azure_uploads:AzureUploads",
}


class BucketStore(RemoteStore):
    """Objects with `s3://`, `gs://` and `az://` URLs."""

    def _list(self, directory: str) -> Mapping[str, RemoteEntry] | None:
        scheme, bucket, prefix = split_url(directory)
        found = obstore.list_with_delimiter(  # pyright: ignore[reportUnknownMemberType]  # an overload for pyarrow
            open_bucket(scheme, bucket), prefix or None, return_arrow=False
        )
        names = {
            os.path.basename(path.rstrip("/")): RemoteEntry(is_directory=True)
            for path in found["common_prefixes"]
        }
        objects = {os.path.basename(meta["path"]): object_of(meta) for meta in found["objects"]}
        if scheme == "az":
            objects = {name: each._replace(tag=_quote(each.tag)) for name, each in objects.items()}
        return names | {name: RemoteEntry(object=each) for name, each in objects.items()}

    def _look(self, path: str) -> RemoteObject:
        scheme, bucket, key = split_url(path)
        if not key:
            raise FileNotFoundError(path)
        return object_of(obstore.head(open_bucket(scheme, bucket), key))

    def _fetcher(self, path: str, known: RemoteObject | None) -> Fetch:
        scheme, bucket, key = split_url(path)
        store, tag = open_bucket(scheme, bucket), known.tag if known else ""
        return lambda start, stop: fetch_range(store, key, start, stop, tag)

    def uploads(self, path: str) -> Uploads:
        """Return the interface for writing; raises `OutputError` if a package is missing."""
        scheme = split_url(path)[0]
        try:
            made: Uploads = load(_WRITERS[scheme])()
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("weightctl"):
                raise
            raise OutputError(
                f"writing {path} needs the package {error.name}, which is not installed",
                hint=f"install it: `pip install 'weightctl[{scheme}]'`",
            ) from error
        return made


def _quote(tag: str) -> str:
    """Return an ETag in quotes, as in headers, since Azure's listings leave them out."""
    return f'"{tag}"' if tag and '"' not in tag else tag
