"""AdEMAMix for PyTorch."""

try:
    import torch as torch
except ImportError as error:
    raise ImportError("ademamix.pytorch needs PyTorch: pip install 'ademamix[torch]'") from error
