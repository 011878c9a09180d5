"""Recording a training run while it goes."""
