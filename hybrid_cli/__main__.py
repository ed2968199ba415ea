"""`python -m hybrid_cli`, which torchrun needs."""

from hybrid_cli.cli import run

if __name__ == "__main__":
    run()
