"""Queries rewritten by a language model behind an OpenAI chat API, as a plugin of `hybrid perturb`.

    export HYBRID_LLM=http://localhost:8000/v1#NAME      # HYBRID_API_KEY: the key, if there is one
    hybrid perturb data/mine --split dev --plugin rewrite.py --attack rewrite --output rewritten.parquet
    hybrid sweep setups.yaml data/mine --split dev --output out/sweep   # plain: {}, rewritten: {search: {queries: ...}}

The sweep says with an interval whether rewriting helps. The query is data: the model gets it as a JSON string.
"""

import json
import os
from functools import cache

from hybrid_cli import InputError, plugins
from hybrid_cli.http_client import Api

TASK = (
    "The user message is a JSON object with a search query. Write the query as a person would who knows the documents: "
    "spell words correctly, write out abbreviations, add up to five words that a relevant document has. "
    'Answer with JSON only: {"query": "..."}.'
)


@cache
def opened() -> tuple[Api, str]:
    """Return the API and the name of the model."""
    url, _, model = os.environ.get("HYBRID_LLM", "").partition("#")
    if not model:
        raise InputError(
            "HYBRID_LLM: needs http://HOST/v1#NAME, the address of a chat API and a model", code="no-model"
        )
    return Api(url, "attack", timeout=60), model


@plugins.register("perturbations", "rewrite")
def rewrite(text, draw):
    """Let a language model write the query as an expert would (HYBRID_LLM=http://HOST/v1#NAME)."""
    api, model = opened()
    chat = [{"role": "system", "content": TASK}, {"role": "user", "content": json.dumps({"query": text})}]
    body = api.ask("/chat/completions", {"model": model, "messages": chat, "temperature": 0})
    try:
        answer = json.loads(body)["choices"][0]["message"]["content"]
        written = json.loads(answer[answer.index("{") : answer.rindex("}") + 1])["query"]
    except (ValueError, LookupError, TypeError, AttributeError):
        written = ""
    return written if isinstance(written, str) and written.strip() else text  # an unusable answer changes nothing
