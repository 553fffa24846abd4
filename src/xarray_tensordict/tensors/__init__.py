"""Values in memory: from Datasets to tensordicts, and back."""
