"""Private interfaces of the libraries: one module for each, checked at import."""
