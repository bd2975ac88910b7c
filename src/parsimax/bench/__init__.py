"""What ``parsimax bench`` runs: a registry of cases, and the timing, checking and printing of them."""
