"""Training: examples, losses, teachers, validation, and the training loop."""
