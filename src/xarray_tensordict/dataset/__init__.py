"""What a Dataset says of its batch, and which variable becomes which entry of a tensordict."""
