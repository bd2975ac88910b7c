"""What runs on the GPU: Triton kernels and the functions they share. Only this folder imports Triton's language."""
