"""Many trials of one run: what varies (space, presets), where they are written down (study), and what was found."""
