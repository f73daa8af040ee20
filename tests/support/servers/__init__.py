"""Servers of remote stores, inside the process of a test: HTTP, S3, Google Cloud Storage, the Hub.

with S3Server() as server:
    server.create_bucket("models").put("a.gguf", b"...")
    server.inject(Answer(503), method="GET", nth=1)
"""
