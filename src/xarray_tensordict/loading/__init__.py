"""From a lazy Dataset to a training loop: batches, shuffles, windows, datasets for torch's DataLoader."""
