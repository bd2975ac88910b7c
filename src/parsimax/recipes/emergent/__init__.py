"""A game of two networks: a sender names an image by one of 256 messages, a receiver finds it among 16."""
