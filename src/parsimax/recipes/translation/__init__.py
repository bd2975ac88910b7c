"""Translation by a Transformer with sparse attention, one learned α per head (Correia, Niculae and Martins 2019)."""
