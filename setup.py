"""The description on a package index: README.md without its relative links and pictures, which lead nowhere there.

Everything else about the package is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

_FENCE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"!\[[^\]]*\]\((?!\w+:)[^)]*\)\n*")
_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)[^)]*\)")
_END = "\nThe pages that this text names, and the tests, are in the source distribution.\n"


def without_relative_links(text: str) -> str:
    """Return Markdown with the words of each relative link in place of the link; code stays."""
    parts = _FENCE.split(text)
    return "".join(part if n % 2 else _LINK.sub(r"\1", _PICTURE.sub("", part)) for n, part in enumerate(parts))


def description() -> str:
    """Return the text of README.md for a package index."""
    return without_relative_links(Path(__file__).with_name("README.md").read_text("utf-8")) + _END


if __name__ == "__main__":
    setup(long_description=description(), long_description_content_type="text/markdown")
