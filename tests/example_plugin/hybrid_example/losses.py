"""A loss."""

from torch.nn import functional

from hybrid_cli.training.losses import LossInputs, Terms


def cosine(vectors: LossInputs, temperature: float = 1.0, weight: float = 1.0, squared: bool = False) -> Terms:
    """Raise the cosine of query and positive."""
    cosines = functional.cosine_similarity(vectors.queries, vectors.documents[:, 0])
    distances = (1 - cosines) ** 2 if squared else 1 - cosines
    return {"cosine": weight * distances.mean() / temperature}
