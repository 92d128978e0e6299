"""The chat's widgets, one a file."""
