"""The arithmetic of the recipes that train nothing, and its tables."""
