"""Internal oversight by one trusted prompt: undo or detect an altered request (§2.7).

Only the request is supervised. An attack that edits the story itself is outside the method's reach. The trusted request
must be the one that the application always asks: one input, checked by a human, for each application.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float

from iclr_interp.orion.language_model import LanguageModel, layer_after
from iclr_interp.orion.tokens import Batch, encode, soft_match, spans
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path

#: 0-based index of the block after which the paper patches, by model.
PAPER_BLOCKS = {"pythia-410m": 16, "pythia-1b": 10, "pythia-2.8b": 19, "pythia-12b": 19}

#: Words by which the kind of answer of a question is told, in this order.
_KINDS = {
    "place": ("city", "where", "located", "town", "country", "capital"),
    "occupation": ("occupation", "profession", "job", "living"),
    "name": ("name", "who", "called"),
    "number": ("how many", "how much", "number of"),
}


def paper_layer(name: str) -> int | None:
    """The layer (1 … N) for a model of the paper, by its directory's name; None for others."""
    blocks = {key: block for key, block in PAPER_BLOCKS.items() if name.lower().startswith(key)}
    return layer_after(next(iter(blocks.values()))) if blocks else None


@dataclass(frozen=True)
class Inspection:
    """What oversight says of one prompt.

    Args:
        plain: the word the model says.
        repaired: the word it says with the trusted request patched in.
        trusted: the word that the trusted prompt leads to with this prompt's request patched in.
        changed: A, repair changes the output.
        foreign: B, this request does not lead the trusted prompt to its trusted answer.
    """

    plain: str
    repaired: str
    trusted: str
    changed: bool
    foreign: bool

    @property
    def altered(self) -> bool:
        """A ∨ B: the verdict "altered request"."""
        return self.changed or self.foreign


class TrustedRequest:
    """The residual at END of one trusted prompt after one layer, ready to be patched into any other prompt.

    Args:
        model: whose residual it is.
        text: the trusted prompt, which asks what the application always asks, in other words.
        layer: 1 … N, best L2 found on clean data; the paper's 0-based block indices are one lower (`layer_after`).
        answer: the trusted answer; default what the model says.

    Raises:
        InputError: if the layer is out of range or the prompt does not fit.
    """

    def __init__(self, model: LanguageModel, text: str, layer: int, answer: str | None = None):
        self.model, self.text, self.layer = model, text, model.check_layer(layer)
        self.tokens = encode(model.tokenizer, text)
        logits, residuals = model.residuals(model.batch_tokens([self.tokens]))
        self.vector: Float[torch.Tensor, " d"] = residuals[0, layer]
        self.answer = self._words(logits)[0] if answer is None else answer

    def save(self, path: str | Path) -> None:
        """Write vector and what it belongs to as safetensors: model, layer, token count, dtype, hash of the prompt."""
        from safetensors.torch import save_file

        about = {**self._about(), "model": self.model.name, "text": self.text, "answer": self.answer}
        with atomic_path(path) as temporary:
            save_file({"vector": self.vector.cpu().contiguous()}, temporary, {"orion": json.dumps(about)})

    @classmethod
    def load(cls, path: str | Path, model: LanguageModel) -> "TrustedRequest":
        """Read what `save` wrote.

        Raises:
            InputError: if the file is none of ours, or belongs to another model.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), "pt") as file:
                about, vector = json.loads(file.metadata()["orion"]), file.get_tensor("vector")
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} holds no trusted request: {error}") from None
        found = cls.__new__(cls)
        found.model, found.text, found.answer = model, about["text"], about["answer"]
        found.layer = model.check_layer(about["layer"])
        found.tokens, found.vector = encode(model.tokenizer, found.text), vector.to(model.device)
        mine = found._about()
        if wrong := [key for key in mine if mine[key] != about.get(key)]:
            raise InputError(
                f"{path} was made for another model, {about.get('model')}. Its {wrong[0]}: {about.get(wrong[0])}, here "
                f"{mine[wrong[0]]}."
            )
        return found

    def plain(self, texts: Sequence[str], batch_size: int = 16) -> list[str]:
        """The next word of each prompt, unpatched (greedy, one token)."""
        return [word for batch in self._batches(texts, batch_size) for word in self._words(self.model.run(batch))]

    def repair(self, texts: Sequence[str], batch_size: int = 16) -> list[str]:
        """The next word of each prompt with the trusted request patched in: trusted → untrusted."""
        return [word for batch in self._batches(texts, batch_size) for word in self._repaired(batch)]

    def trusted_outputs(self, texts: Sequence[str], batch_size: int = 16) -> list[str]:
        """The next word of the trusted prompt with each prompt's request patched in: untrusted → trusted."""
        batches = self._batches(texts, batch_size)
        return [word for batch in batches for word in self._in_trusted(self.model.residuals(batch)[1])]

    def inspect(
        self, texts: Sequence[str], batch_size: int = 16, progress: Callable[[Sequence[Any]], Iterable[Any]] = iter
    ) -> list[Inspection]:
        """Both directions, and the verdict, for each prompt; `progress` wraps the list of batches.

        Warns if a prompt seems to ask for another kind of answer than the trusted one.
        """
        self._compare_kinds(texts)
        found: list[Inspection] = []
        for batch in self._batches(texts, batch_size, progress):
            logits, residuals = self.model.residuals(batch)
            rows = zip(self._words(logits), self._repaired(batch), self._in_trusted(residuals), strict=True)
            found += [Inspection(p, r, t, r != p, not soft_match(t, self.answer)) for p, r, t in rows]
        return found

    def _batches(self, texts, batch_size, progress=iter) -> Iterator[Batch]:
        if not texts:
            raise InputError("There is no prompt to look at.")
        return (self.model.batch(texts[part]) for part in progress(list(spans(len(texts), batch_size))))

    def _repaired(self, batch: Batch) -> list[str]:
        return self._words(self.model.run(batch, self.layer, self.vector.expand(len(batch.ids), -1)))

    def _in_trusted(self, residuals: Float[torch.Tensor, "n L d"]) -> list[str]:
        trusted = self.model.batch_tokens([self.tokens] * len(residuals))
        return self._words(self.model.run(trusted, self.layer, residuals[:, self.layer]))

    def _words(self, logits: torch.Tensor) -> list[str]:
        return [self.model.tokenizer.decode([token]) for token in logits.argmax(-1).tolist()]

    def _about(self) -> dict[str, str | int]:
        digest = hashlib.sha256(json.dumps(self.tokens).encode()).hexdigest()
        return {
            "dtype": str(self.model.dtype), "weights": self.model.fingerprint,
            "layer": self.layer, "tokens": len(self.tokens), "prompt": digest,
        }  # fmt: skip

    def _compare_kinds(self, texts: Sequence[str]) -> None:
        trusted = answer_kind(self.text)
        kinds = [answer_kind(text) for text in texts]
        other = [i for i, kind in enumerate(kinds) if kind is not None and trusted is not None and kind != trusted]
        if other:
            warnings.warn(
                f"{len(other)} of {len(texts)} prompts seem to ask for a {kinds[other[0]]}, the trusted prompt for a "
                f"{trusted} (prompt {other[0]} first). Repair answers the trusted request; give each kind its own.",
                stacklevel=3,
            )


def answer_kind(text: str) -> Literal["place", "occupation", "name", "number"] | None:
    """What a prompt's last question seems to ask for, told by its words; None if that is not clear."""
    sentences = [part for part in text.replace("\n", " ").split("?") if part.strip()]
    asked = sentences[-2 if len(sentences) > 1 else -1].split(". ")[-1].lower() if "?" in text else ""
    return next((kind for kind, words in _KINDS.items() if any(word in asked for word in words)), None)  # type: ignore[return-value]
