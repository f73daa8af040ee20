"""Threads, signals, disk space, temporary names, and modules that are loaded on use."""
