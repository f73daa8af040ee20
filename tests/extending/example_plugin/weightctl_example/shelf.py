"""shelf://PATH is a file below the directory that the environment variable SHELF names."""

import os

from weightctl.errors import FormatError, MissingFileError
from weightctl.storage.base import Entry, Reader, Store


def place(url):
    """Return the path of a file or directory."""
    parts = url.partition("://")[2].split("/")
    if ".." in parts or "SHELF" not in os.environ:
        raise FormatError(url, None, "it is not on the shelf", hint="set SHELF to a directory")
    return os.path.join(os.environ["SHELF"], *parts)


class ShelfReader(Reader):
    """A file on the shelf."""

    def __init__(self, url):
        self.path = url
        try:
            status = os.stat(place(url))
        except OSError as error:
            raise MissingFileError(url, None, "it is not on the shelf") from error
        self.size, self.written = status.st_size, status.st_mtime_ns

    def read(self, offset, nbytes):
        with open(place(self.path), "rb") as file:
            file.seek(offset)
            return file.read(nbytes)


class ShelfStore(Store):
    """All files on the shelf."""

    def open(self, path):
        return ShelfReader(path)

    def find(self, path):
        if not os.path.exists(place(path)):
            return None
        return Entry(os.path.isdir(place(path)), os.path.getsize(place(path)))

    def list_names(self, directory):
        names = os.listdir(place(directory))
        return {name: self.find(f"{directory}/{name}") for name in names}
