"""The LoRA rank that a fine-tuned model needs, and its adapter."""
