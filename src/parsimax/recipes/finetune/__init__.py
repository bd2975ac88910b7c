"""A pretrained encoder of transformers with sparse attention, fine-tuned on sentences or pairs: classes or numbers."""
