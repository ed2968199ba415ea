"""`hybrid serve`: a page, an API and MCP tools over an open retriever."""
