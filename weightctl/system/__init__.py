"""Threads, signals, disk space, temporary names, and modules loaded on first use."""

# Also as `weightctl.__version__`. Modules below import it from here, so that none imports the whole
# package.
__version__ = "0.2.0"
