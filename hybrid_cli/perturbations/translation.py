"""Back translation: machine-translate a query to another language and back (LITE, after TextAttack)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM

from hybrid_cli import console
from hybrid_cli.encoders.loading import open_model, open_tokenizer, read_config, refuse_missing
from hybrid_cli.encoders.models import pick_device
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.perturbations.attacks import Attack, Attacked, Draw, Inputs, Rewrite

BEAMS = 4
BATCH_SIZE = 32  # queries
MAX_TOKENS = 256  # maximum tokens of a query and of its translation


def start(inputs: Inputs) -> Rewrite:
    """Translate all queries to another language and back; an empty translation leaves its query unchanged.

    Args:
        inputs: inputs with the files `there` and `back`, folders of sequence-to-sequence models.

    Raises:
        InputError: a folder contains no such model, or its model needs a language code.
    """
    prefix, device = inputs.options.translation_prefix, inputs.options.device
    texts = inputs.queries["text"].unique().to_list()
    there = Translator(inputs.files["there"], device)
    there.check_prefix(prefix)
    foreign = there.translate([f"{prefix} {text}".strip() for text in texts])
    translated = dict(zip(texts, Translator(inputs.files["back"], device).translate(foreign), strict=True))

    def rewrite(qid: str, text: str, draw: Draw) -> Attacked:
        return Attacked(translated[text].strip() or text)

    return rewrite


BACK = Attack(start, ("translation",))


class Translator:
    """A sequence-to-sequence model of transformers with deterministic beam search.

    The model runs in double precision: in single precision, the padding of a batch, and thus the other queries,
    occasionally affects the order of two beams with nearly equal scores.
    """

    def __init__(self, folder: Path, device: str):
        self.folder = folder
        target = pick_device(device)
        self.device = "cpu" if target == "mps" else target  # mps has no double precision
        if not any(folder.glob("*.safetensors")):
            raise path_error(folder, "has no model.safetensors; save it in that format", code="no-weights")
        self.tokenizer: Any = open_tokenizer(folder)
        model, missing, _ = open_model(AutoModelForSeq2SeqLM, folder, read_config(folder))
        refuse_missing(folder, missing)
        self.model = model.double().to(self.device).eval()

    def check_prefix(self, prefix: str) -> None:
        """Refuse a prefix without language code if the model translates to several languages."""
        codes = getattr(self.tokenizer, "supported_language_codes", ())
        if codes and not any(prefix.startswith(code) for code in codes):
            needed = f"needs one of {', '.join(codes)}"
            raise option_error("translation_prefix", prefix, needed, code="unknown-choice", choices=codes)

    @torch.inference_mode()
    def translate(self, texts: Sequence[str]) -> list[str]:
        """Return the translation of each text; texts of similar length share a batch."""
        order = sorted(range(len(texts)), key=lambda row: (len(texts[row]), texts[row]))
        results = [""] * len(texts)
        with console.progress(f"translate with {self.folder.name}", len(texts), "queries") as advance:
            for first in range(0, len(order), BATCH_SIZE):
                rows = order[first : first + BATCH_SIZE]
                translations = self._translate([texts[row] for row in rows])
                for row, text in zip(rows, translations, strict=True):
                    results[row] = text
                advance(len(rows))
        return results

    def _translate(self, texts: list[str]) -> list[str]:
        batch = self.tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=MAX_TOKENS)
        batch = batch.to(self.device)
        written = self.model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            do_sample=False,
            num_beams=BEAMS,
            max_new_tokens=MAX_TOKENS,
        )
        return list(self.tokenizer.batch_decode(written, skip_special_tokens=True))
