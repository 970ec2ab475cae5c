"""tasks/datasets."""
