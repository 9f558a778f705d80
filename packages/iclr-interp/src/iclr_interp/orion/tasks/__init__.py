"""The data sets of the six domains (§2.3), and the small grammars on which language models are trained on the spot."""

from iclr_interp.orion.tasks import (
    factual_recall,
    induction,
    question_answering,
    translation,
    type_hints,
    typed_story,
    variable_binding,
)

__all__ = [
    "factual_recall",
    "induction",
    "question_answering",
    "translation",
    "type_hints",
    "typed_story",
    "variable_binding",
]
