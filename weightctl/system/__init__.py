"""Threads, signals, disk space, temporary names, and modules loaded on first use."""
