"""What a person sees: the summary of a Dataset's batch, as text, as HTML, as plain data."""
