"""What recipes on images with a latent variable share."""
