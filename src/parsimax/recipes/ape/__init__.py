"""Automatic post-editing by a pretrained BERT as encoder and decoder (Correia and Martins 2019)."""
