"""Settings shared by all tests."""

import torch

# pytest-xdist already uses the cores; threads inside each worker would only fight over them.
torch.set_num_threads(1)
