"""Language models, LSTM or Transformer, with any output head; they write text by sampling from its exact support."""
