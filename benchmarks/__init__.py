"""What this package takes for the jobs of its users, beside what they would take without it: ``make bench``."""
