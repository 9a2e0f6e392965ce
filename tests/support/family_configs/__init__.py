"""Configurations of tiny checkpoints, a file for each group of families."""
