"""``python -m parsimax.demo``: what every mapping does, a small classifier trained three ways, and a picture."""
