"""Several labels for each row of numbers, by layers from sigmoid to r-softmax whose rate of zeros is predicted."""
