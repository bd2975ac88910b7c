"""What every recipe stands on: typed settings, run folders, batches that can be resumed, training by Lightning."""
