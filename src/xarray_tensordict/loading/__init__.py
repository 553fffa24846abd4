"""From a lazy Dataset to a training loop: batches, shuffles, windows, datasets for torch's DataLoader.

``order`` says which samples come when, ``samples`` which rows a sample has, ``reader`` reads rows, ``kept`` keeps decoded
chunks, ``read_ahead`` plans how much is read and shuffled at once and runs it in threads, ``batches`` cuts batches.
"""
