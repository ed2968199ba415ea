"""Back translation: a query goes through another language and comes home (methods 11)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hybrid_cli import console
from hybrid_cli.encoders.models import pick_device
from hybrid_cli.encoders.tower import silence_transformers
from hybrid_cli.errors import InputError
from hybrid_cli.perturbations.attack import Attacked, Draw, Given, Rewrite


def begin(given: Given) -> Rewrite:
    """Translate all queries there and back; one that comes home empty stays as it was.

    Args:
        given: with the files `there` and `back`, folders of sequence-to-sequence models.

    Raises:
        InputError: a folder holds no such model, or its model wants to be told the language.
    """
    texts = given.queries["text"].unique().to_list()
    away = Translator(given.files["there"], given).translate([f"{given.how.prefix} {text}".strip() for text in texts])
    home = Translator(given.files["back"], given, needs_code=False).translate(away)
    translated = dict(zip(texts, home, strict=True))

    def rewrite(qid: str, text: str, draw: Draw) -> Attacked:
        return Attacked(translated[text].strip() or text)

    return rewrite


class Translator:
    """A model of transformers that reads a text and writes another, the same one each time (beam search).

    It computes in double precision: in single precision the padding of a batch, that is the other texts, decides now
    and then between two beams of nearly the same score.
    """

    def __init__(self, folder: Path, given: Given, *, needs_code: bool = True):
        self.folder, self.how = folder, given.how
        found = pick_device(given.device)
        self.device = "cpu" if found == "mps" else found  # which has no double precision
        silence_transformers()
        if not any(folder.glob("*.safetensors")):
            raise InputError(
                f"{folder}: has no model.safetensors, and hybrid opens no pickles (pytorch_model.bin); where you trust "
                'it, convert it: python -c "from transformers import AutoModelForSeq2SeqLM as M; '
                "M.from_pretrained('FOLDER').save_pretrained('FOLDER')\""
            )
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise InputError(f"{folder}: holds no translation model that transformers can load ({reason})") from None
        self.model = model.double().to(self.device).eval()
        codes = getattr(self.tokenizer, "supported_language_codes", ())
        if needs_code and codes and not any(given.how.prefix.startswith(code) for code in codes):
            raise InputError(f"{folder}: translates into several languages; --prefix needs one of {', '.join(codes)}")

    @torch.inference_mode()
    def translate(self, texts: Sequence[str]) -> list[str]:
        """Each text's translation; texts of like length share a batch."""
        order = sorted(range(len(texts)), key=lambda place: (len(texts[place]), texts[place]))
        found = [""] * len(texts)
        with console.progress(f"translate with {self.folder.name}", len(texts), "queries") as advance:
            for first in range(0, len(order), self.how.batch_size):
                places = order[first : first + self.how.batch_size]
                batch = self.tokenizer(
                    [texts[place] for place in places],
                    return_tensors="pt",
                    padding=True,
                    truncation=True,
                    max_length=self.how.max_tokens,
                ).to(self.device)
                written = self.model.generate(
                    input_ids=batch["input_ids"],
                    attention_mask=batch["attention_mask"],
                    do_sample=False,
                    num_beams=self.how.beams,
                    max_new_tokens=self.how.max_tokens,
                )
                for place, text in zip(
                    places, self.tokenizer.batch_decode(written, skip_special_tokens=True), strict=True
                ):
                    found[place] = text
                advance(len(places))
        return found
