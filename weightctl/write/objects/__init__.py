"""Outputs in object stores."""
