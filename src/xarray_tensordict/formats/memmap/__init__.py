"""Memory-mapped tensordicts: folders, `.tdz` archives and checkpoints."""
