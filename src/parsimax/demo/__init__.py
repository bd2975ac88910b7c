"""``python -m parsimax.demo``: what every mapping does, a sparse Transformer beside its softmax twin, and pictures."""
