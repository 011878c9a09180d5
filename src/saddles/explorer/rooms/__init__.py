"""The rooms of the explorer, one file each."""
