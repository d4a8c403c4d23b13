"""Settings of torch on a GPU that suit rows of ever new lengths."""

import os
from collections.abc import Mapping

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def set_gpu_defaults(environment: Mapping[str, str] = os.environ) -> None:
    """Set torch's allocator and attention for a training process, once verl's platform was selected.

    Memory segments can grow: else the pieces between tensors of other lengths took as much as the tensors. An allocator
    that the user configured stays as it is. cuDNN's attention is left out: it builds a plan for each new length.
    """
    import torch
    from verl.utils.device import set_expandable_segments

    if not any(environment.get(name) for name in ALLOCATOR_VARIABLES):
        set_expandable_segments(True)
    torch.backends.cuda.enable_cudnn_sdp(False)
