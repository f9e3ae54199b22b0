"""The lab: trains, measures and draws with the library."""

PARAMETERS = {"fp32": "float32", "bf16": "bfloat16"}
"""The dtypes that the parameters of a run can have, by their names in configs and on the command line, with torch's."""
