"""The batch of a Dataset, and which variable becomes which entry of a tensordict."""
