"""Training: examples, objectives and the one loop."""
