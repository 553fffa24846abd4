"""From a lazy Dataset to a training loop: batches, shuffles, windows, datasets for torch's DataLoader.

``order`` says which samples come when, ``samples`` which rows a sample has, ``planning`` how much is read and shuffled at
once, ``reader`` reads rows and keeps what is read once, ``read_ahead`` runs it in a thread, ``batches`` cuts batches.
"""
