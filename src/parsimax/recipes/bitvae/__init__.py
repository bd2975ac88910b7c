"""A VAE whose latent variable is a vector of bits: top-k, SparseMAP with or without a budget, or sampled."""
