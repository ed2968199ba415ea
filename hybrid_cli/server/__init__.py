<<<<<<< HEAD
"""`hybrid serve`: a page, an API and MCP tools over an open retriever."""
=======
"""The served page and its API: see `hybrid serve`."""
>>>>>>> page
