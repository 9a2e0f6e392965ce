"""Tiny configurations of families, a file for each group of relatives."""
