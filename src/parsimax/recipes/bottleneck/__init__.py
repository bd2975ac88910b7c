"""The softmax bottleneck in a test tube: random distributions, free contexts, shared word vectors, any output head."""
