"""Morphological inflection by a character LSTM, sparse in attention and output (Peters, Niculae and Martins 2019)."""
