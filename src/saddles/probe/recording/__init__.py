"""Recording a model while it trains: copies of its weights, measured in the background, written row by row."""
