"""Pickles, read and written as data: nothing that one names is ever imported or called."""
