"""The lab: what trains, measures and draws with the library."""
