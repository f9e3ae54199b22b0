"""How results look: figures and tables."""
