"""The parts of `encode`: texts, their encoder, vectors of other tools, and matrices of learned weights."""
