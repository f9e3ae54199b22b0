"""Carrying runs out: their folders, processes, progress, and what is kept of them."""
