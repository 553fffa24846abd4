"""The private interfaces of other libraries, and the differences between their versions: one module for each library."""
