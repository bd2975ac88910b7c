"""Sequence-to-sequence models with sparse attention and sparse outputs: what the two recipes share."""
