"""A semi-supervised VAE: digits of which few have a label, the class of the others a latent variable."""
