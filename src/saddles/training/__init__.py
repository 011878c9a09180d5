"""The training loop of the torch labs."""
