"""The arithmetic of the recipes that train nothing."""
