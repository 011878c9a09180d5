"""What the torch labs share to train a model.

- `loop`: `Loop` takes the steps, measures, stores, and defers interruptions.
- `checkpoint`: `History` is what a run has seen so far; `Checkpoint` stores it with the state of model and optimiser.
- `device`: random draws by number, mixed precision, a sentence where memory runs out.
- `graphs`: `captured` makes a CUDA graph of a function of tensors of fixed shapes.
- `processes`: the share of a process that a launcher such as torchrun started.
"""
