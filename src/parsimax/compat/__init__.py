"""The names and signatures of packages that people come from, on the functions of this one.

``from entmax import …`` becomes ``from parsimax.compat.entmax import …``, and ``from sparsemax import Sparsemax``
becomes ``from parsimax.compat.sparsemax import Sparsemax``.
"""
