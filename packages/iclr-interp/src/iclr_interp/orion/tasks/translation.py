"""Translation: an article names five people, and a half translated sentence ends before one of the names (§2.3)."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from iclr_interp.orion.datasets import Prompt, Thin, enough, register_task
from iclr_interp.orion.retrieval import Entity, Query

#: Five surnames for each of the five roles of an article.
SURNAMES = (
    ("Martin", "Walker", "Fischer", "Novak", "Costa"),
    ("Garcia", "Turner", "Hughes", "Larsen", "Keller"),
    ("Brown", "Moreau", "Young", "Petrov", "Silva"),
    ("Davis", "Evans", "Rossi", "Ibrahim", "Jensen"),
    ("Lopez", "Quinn", "Weber", "Zhang", "Okafor"),
)


@dataclass(frozen=True)
class Article:
    """News in English, and for each of its five people the beginning of the translated sentence about them.

    Args:
        language: it is translated to.
        text: with ``{0}`` ... ``{4}`` where the surnames stand.
        sentences: by role, ending in the person's title.
    """

    language: str
    text: str
    sentences: tuple[str, ...]


FRENCH = Article(
    "French",
    "The town council voted on Tuesday to reopen the old ferry line across the bay. The proposal was defended by M. "
    "{0}, who runs the harbour office. The engineer in charge of the new pier, Dr. {1}, promised that the work would "
    "end before June. The first boat will be steered by Capt. {2}, who knows the currents well. Not everyone is "
    "pleased: the owner of the bus company, M. {3}, fears that he will lose half of his passengers. A study on the "
    "birds of the estuary was presented by Dr. {4}, and the council will discuss it next month.",
    (
        "La proposition a été défendue par M.",
        "L'ingénieur responsable du nouveau quai est Dr.",
        "Le premier bateau sera piloté par Capt.",
        "Le propriétaire de la compagnie d'autobus est M.",
        "L'étude sur les oiseaux de l'estuaire a été présentée par Dr.",
    ),
)
SPANISH = Article(
    "Spanish",
    "A fire broke out on Sunday in the storehouse of the national library, and no one was hurt. The alarm was raised "
    "by M. {0}, the night guard. The firemen were led by Capt. {1}, who decided to open the roof. The old maps were "
    "carried out by Dr. {2}, a historian who lives across the street. The damage will be estimated by M. {3}, an "
    "expert of the insurance company. In the hospital two smoke-filled volunteers were treated by Dr. {4}, and both "
    "went home the same evening.",
    (
        "La alarma fue dada por M.",
        "Los bomberos fueron dirigidos por Capt.",
        "Los mapas antiguos fueron sacados por Dr.",
        "Los daños serán evaluados por M.",
        "En el hospital, los voluntarios fueron atendidos por Dr.",
    ),
)
GERMAN = Article(
    "German",
    "A research ship returned on Friday after ninety days in the northern ice. The crew was commanded by Capt. {0}, "
    "who has made the journey eleven times. The ice cores were drilled by Dr. {1} at a depth of two kilometres. The "
    "ship's kitchen was in the hands of M. {2}, whose bread became famous on board. A broken propeller was repaired "
    "under water by M. {3} in only six hours. The results of the journey will be published by Dr. {4}, who stayed on "
    "shore and gathered the measurements every day.",
    (
        "Die Mannschaft wurde geführt von Capt.",
        "Die Eiskerne wurden gebohrt von Dr.",
        "Die Küche des Schiffes leitete M.",
        "Ein gebrochener Propeller wurde repariert von M.",
        "Die Ergebnisse der Reise veröffentlicht Dr.",
    ),
)
ARTICLES = (FRENCH, SPANISH, GERMAN)


def read(text: str) -> str:
    """Parse a prompt without its abstract meaning: by the place of the translated sentence in the article."""
    article = next(a for a in ARTICLES if f"\n{a.language}:" in text)
    english, translated = text.split(f"\n{article.language}: ")
    role = article.sentences.index(translated)
    surnames = re.findall(r"(?:M|Dr|Capt)\. ([A-Z]\w+)", english)
    return " " + surnames[role]


def _generator(article: Article):
    def generate(n: int, rng: random.Random, thin: Thin) -> Iterator[Prompt]:
        choices = [enough(thin(pool, lambda surname: " " + surname), 1, "surnames of a role") for pool in SURNAMES]
        for _ in range(n):
            surnames = [rng.choice(pool) for pool in choices]
            role = rng.randrange(5)
            people = tuple(Entity(s, {"role": str(i), "spaced": " " + s}) for i, s in enumerate(surnames))
            parts = (
                (
                    "context",
                    f"Translate the news into {article.language}.\n\nEnglish: {article.text.format(*surnames)}\n",
                ),
                ("request", f"\n{article.language}: {article.sentences[role]}"),
            )
            yield Prompt(parts, Query("spaced", {"role": str(role)}), people)

    return generate


for _article in ARTICLES:
    register_task(
        f"translation/{_article.language.lower()}", _generator(_article), f"news in English to {_article.language}",
        paper=True,
    )  # fmt: skip
