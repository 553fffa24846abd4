"""The lazy object: a ``PersistentTensorDict`` over a Dataset."""
