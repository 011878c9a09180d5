"""Where a model keeps the weights of its attention heads."""
