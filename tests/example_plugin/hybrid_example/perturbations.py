"""A perturbation."""

from hybrid_cli.perturbations.attacks import Draw


def shout(text: str, draw: Draw) -> str:
    """Write the query in capital letters, and a random number of exclamation marks."""
    return text.upper() + "!" * (1 + draw("marks") % 3)
