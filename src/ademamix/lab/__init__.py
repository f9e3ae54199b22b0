"""The lab: trains, measures and draws with the library."""
