"""The lazy door: a ``PersistentTensorDict`` over a Dataset."""
