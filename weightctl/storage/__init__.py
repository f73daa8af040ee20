"""Reads and writes files of any storage, local or remote, by byte ranges."""
