"""Carrying out runs: their folders, processes and progress, and the results that are kept."""
