"""What several recipes on text share: files, vocabularies, batches by length, figures of outputs."""
