"""Factual recall: the question names an entity whose facts the model knows from training (§2.3)."""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from iclr_interp.orion.datasets import Prompt, Thin, enough, register_task
from iclr_interp.orion.retrieval import Entity, Query

#: country: capital, official language that most people speak, continent
COUNTRIES = {
    "France": ("Paris", "French", "Europe"),
    "Germany": ("Berlin", "German", "Europe"),
    "Italy": ("Rome", "Italian", "Europe"),
    "Spain": ("Madrid", "Spanish", "Europe"),
    "Portugal": ("Lisbon", "Portuguese", "Europe"),
    "Poland": ("Warsaw", "Polish", "Europe"),
    "Greece": ("Athens", "Greek", "Europe"),
    "Hungary": ("Budapest", "Hungarian", "Europe"),
    "Sweden": ("Stockholm", "Swedish", "Europe"),
    "Norway": ("Oslo", "Norwegian", "Europe"),
    "Denmark": ("Copenhagen", "Danish", "Europe"),
    "Finland": ("Helsinki", "Finnish", "Europe"),
    "Romania": ("Bucharest", "Romanian", "Europe"),
    "Austria": ("Vienna", "German", "Europe"),
    "Ukraine": ("Kyiv", "Ukrainian", "Europe"),
    "Czechia": ("Prague", "Czech", "Europe"),
    "Japan": ("Tokyo", "Japanese", "Asia"),
    "China": ("Beijing", "Chinese", "Asia"),
    "Thailand": ("Bangkok", "Thai", "Asia"),
    "Vietnam": ("Hanoi", "Vietnamese", "Asia"),
    "Iran": ("Tehran", "Persian", "Asia"),
    "Mongolia": ("Ulaanbaatar", "Mongolian", "Asia"),
    "Nepal": ("Kathmandu", "Nepali", "Asia"),
    "Iraq": ("Baghdad", "Arabic", "Asia"),
    "Syria": ("Damascus", "Arabic", "Asia"),
    "Cambodia": ("Phnom Penh", "Khmer", "Asia"),
    "Egypt": ("Cairo", "Arabic", "Africa"),
    "Morocco": ("Rabat", "Arabic", "Africa"),
    "Tunisia": ("Tunis", "Arabic", "Africa"),
    "Angola": ("Luanda", "Portuguese", "Africa"),
    "Mozambique": ("Maputo", "Portuguese", "Africa"),
    "Senegal": ("Dakar", "French", "Africa"),
    "Somalia": ("Mogadishu", "Somali", "Africa"),
    "Ghana": ("Accra", "English", "Africa"),
    "Brazil": ("Brasilia", "Portuguese", "South America"),
    "Argentina": ("Buenos Aires", "Spanish", "South America"),
    "Chile": ("Santiago", "Spanish", "South America"),
    "Peru": ("Lima", "Spanish", "South America"),
    "Colombia": ("Bogota", "Spanish", "South America"),
    "Uruguay": ("Montevideo", "Spanish", "South America"),
    "Canada": ("Ottawa", "English", "North America"),
    "Cuba": ("Havana", "Spanish", "North America"),
    "Jamaica": ("Kingston", "English", "North America"),
    "Australia": ("Canberra", "English", "Oceania"),
    "Fiji": ("Suva", "English", "Oceania"),
}
#: person: nationality, continent, gender
PEOPLE = {
    "Marie Curie": ("Polish", "Europe", "female"),
    "Victor Hugo": ("French", "Europe", "male"),
    "Simone de Beauvoir": ("French", "Europe", "female"),
    "Ludwig van Beethoven": ("German", "Europe", "male"),
    "Clara Schumann": ("German", "Europe", "female"),
    "Galileo Galilei": ("Italian", "Europe", "male"),
    "Maria Montessori": ("Italian", "Europe", "female"),
    "Pablo Picasso": ("Spanish", "Europe", "male"),
    "Jane Austen": ("English", "Europe", "female"),
    "Isaac Newton": ("English", "Europe", "male"),
    "Hans Christian Andersen": ("Danish", "Europe", "male"),
    "Astrid Lindgren": ("Swedish", "Europe", "female"),
    "Edvard Grieg": ("Norwegian", "Europe", "male"),
    "Frida Kahlo": ("Mexican", "North America", "female"),
    "Diego Rivera": ("Mexican", "North America", "male"),
    "Abraham Lincoln": ("American", "North America", "male"),
    "Amelia Earhart": ("American", "North America", "female"),
    "Eva Peron": ("Argentine", "South America", "female"),
    "Jorge Luis Borges": ("Argentine", "South America", "male"),
    "Simon Bolivar": ("Venezuelan", "South America", "male"),
    "Pablo Neruda": ("Chilean", "South America", "male"),
    "Gabriela Mistral": ("Chilean", "South America", "female"),
    "Mahatma Gandhi": ("Indian", "Asia", "male"),
    "Indira Gandhi": ("Indian", "Asia", "female"),
    "Akira Kurosawa": ("Japanese", "Asia", "male"),
    "Confucius": ("Chinese", "Asia", "male"),
    "Benazir Bhutto": ("Pakistani", "Asia", "female"),
    "Nelson Mandela": ("South African", "Africa", "male"),
    "Miriam Makeba": ("South African", "Africa", "female"),
    "Haile Selassie": ("Ethiopian", "Africa", "male"),
    "Wangari Maathai": ("Kenyan", "Africa", "female"),
}


@dataclass(frozen=True)
class Facts:
    """A table of facts and how they are asked for.

    Args:
        table: entity to the values of `attributes`.
        attributes: name to question, with ``{}`` for the entity.
        shots: entities whose answers stand before the question; they are not asked for.
    """

    table: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, str]
    shots: tuple[tuple[str, str], ...]

    def fact(self, entity: str, attribute: str) -> str:
        """The value with the space before it."""
        return " " + self.table[entity][list(self.attributes).index(attribute)]


GEOGRAPHY = Facts(
    COUNTRIES,
    {
        "capital": "What is the capital of {}?",
        "language": "Which language is spoken in {}?",
        "continent": "On which continent does one find {}?",
    },
    (("Denmark", "language"),),
)
BIOGRAPHY = Facts(
    PEOPLE,
    {
        "nationality": "What was the nationality of {}?",
        "continent": "On which continent was the home of {}?",
        "gender": "What was the gender of {}?",
    },
    (("Edvard Grieg", "continent"), ("Jane Austen", "gender")),
)
TABLES = {"geography": GEOGRAPHY, "people": BIOGRAPHY}


def read(text: str) -> str:
    """Parse a prompt without its abstract meaning: the last question, looked up in the table."""
    question = re.findall(r"Question: (.*)\n", text)[-1]
    for facts in TABLES.values():
        for attribute, asked in facts.attributes.items():
            before, after = asked.split("{}")
            if question.startswith(before) and question.endswith(after):
                return facts.fact(question[len(before) : len(question) - len(after)], attribute)
    raise ValueError(f"no table knows {question!r}")


def _generator(facts: Facts):
    def generate(n: int, rng: random.Random, thin: Thin) -> Iterator[Prompt]:
        getters = [lambda name, a=attribute: facts.fact(name, a) for attribute in facts.attributes]
        known = enough(thin([name for name in facts.table if name not in dict(facts.shots)], *getters), 2, "entities")
        examples = "".join(
            f"Question: {facts.attributes[a].format(name)}\nAnswer:{facts.fact(name, a)}\n\n" for name, a in facts.shots
        )
        for _ in range(n):
            name, asked = rng.choice(known), rng.choice(list(facts.attributes))
            entity = Entity(name, {a: facts.fact(name, a) for a in facts.attributes})
            before, after = facts.attributes[asked].split("{}")
            parts = (("request", f"{examples}Question: {before}"), ("context", name), ("request", f"{after}\nAnswer:"))
            yield Prompt(parts, Query(asked), (entity,))

    return generate


for _name, _facts in TABLES.items():
    register_task(f"factual_recall/{_name}", _generator(_facts), f"facts about {_name}", paper=True)
