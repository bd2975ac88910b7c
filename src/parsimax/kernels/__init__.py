"""The same answers, faster. Which kernel runs is chosen in :mod:`parsimax.kernels.dispatch`, never by name."""
