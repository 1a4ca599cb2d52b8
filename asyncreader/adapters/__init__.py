"""AsyncReader for frameworks. Each module imports its framework; this one imports none.

``torch.TorchReader``, ``jax.JaxReader``, ``keras.ReaderDataset`` and ``generator.endless``.
"""

from __future__ import annotations
