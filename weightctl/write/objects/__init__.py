"""Writes outputs to object stores."""
