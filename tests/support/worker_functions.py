"""What worker processes of a DataLoader import. They start anew, so this module imports nothing."""


def as_it_is(batch):
    """For `collate_fn`: rows fetched together are a batch already."""
    return batch
