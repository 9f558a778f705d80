"""Question answering: a short story introduces five variables, and the request asks for one of three (§2.3)."""

import random
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from iclr_interp.orion.datasets import Part, Prompt, Thin, enough, register_task
from iclr_interp.orion.retrieval import Entity, Query

NAMES = ("Alice", "Boris", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Irene", "Julia", "Kevin", "Laura",
         "Martin", "Nora", "Oscar", "Peter", "Robert", "Sarah", "Thomas", "Victor")  # fmt: skip
CITIES = ("Paris", "London", "Berlin", "Rome", "Tokyo", "Chicago", "Vienna", "Dublin", "Boston", "Moscow", "Sydney",
          "Toronto", "Geneva", "Oslo", "Lisbon", "Prague", "Athens", "Montreal", "Seattle", "Houston")  # fmt: skip
OCCUPATIONS = ("teacher", "doctor", "lawyer", "baker", "painter", "farmer", "nurse", "writer", "engineer", "gardener",
               "carpenter", "journalist", "sculptor", "singer", "dentist", "pilot", "tailor", "chemist")  # fmt: skip
TIMES = ("morning", "afternoon", "evening", "night")
SEASONS = ("spring", "summer", "autumn", "winter")
QUERIED = ("name", "city", "occupation")

STORIES = (
    "It was a quiet {time} in {city}, and the low light of {season} lay on the roofs. A person walked slowly along the "
    "river, past closed stalls and empty benches, counting the bridges under the breath. The name on the letter that "
    "had come that week was {name}, written twice, once in ink and once in pencil, as though the sender had not been "
    "sure. The work of a {occupation} leaves little time for walks, and this one had been put off again and again. Now "
    "the water was high, the gulls were loud, and somebody in a window far above was practising the same four notes. "
    "There was no hurry. The shop would open late, the visitors would wait, and the letter could be answered after "
    "supper. At the last bridge the walker stopped, leaned on the rail, and for the first time in months thought of "
    "nothing at all.",
    "Nobody had expected {name} at the station. The train from the coast was two hours late, and when it finally "
    "rolled into {city} the platform had emptied; only a porter and a dog were left. It was the middle of {season}, "
    "the kind of {time} when voices carry far. There was one suitcase, heavy with tools and books, for the profession "
    "of {occupation} cannot be practised with bare hands, and a paper bag with what remained of lunch. Outside, the "
    "square was being swept. A tram rang its bell and turned a corner. The address was on the back of a photograph, "
    "in small letters that had begun to fade: third floor, second door, knock loudly. It took a quarter of an hour to "
    "find the street. The stairs smelled of soap and oranges. Behind the door someone laughed, a chair was pushed "
    "back, and steps came nearer.",
    "Every {season} the old club met for one long {time}, and every year there was one guest whom nobody knew. This "
    "time the stranger was sitting by the stove, with wet shoes and a friendly face. The others had already guessed "
    "that such hands belong to a {occupation}, and they were right, as the guest admitted with a smile. Soup was "
    "brought, then bread, then a pie that had travelled all day. They talked about {city}, where the club has had its "
    "rooms for a hundred years, about the new market hall and the price of coal. Only when the candles were low did "
    "the oldest member ask the question that should have come first. My name is {name}, said the guest, and I believe "
    "that my grandmother founded this club. There was a silence, and after it a good deal of noise, and nobody went "
    "home before the lamps were out.",
)

QUESTIONS = {
    "name": (
        "What is the name of the main character?",
        "Who is the story about?",
        "What is the main character called?",
    ),
    "city": ("In which city does the story take place?", "Where is the story located?", "What city is the setting?"),
    "occupation": (
        "What is the occupation of the main character?",
        "What does the main character do for a living?",
        "Which profession does the main character have?",
    ),
}
#: What the base form's answer begins with: its last token tells the question.
PREFIXES = {
    "name": "The main character is called",
    "city": "The story takes place in the city of",
    "occupation": "The main character works as a",
}
UNIFORM = 'Answer: "'
FORMS = ("base", "uniform_prefix", "question_first")


def story(rng: random.Random, pools: dict[str, list[str]]) -> tuple[str, dict[str, str]]:
    """One story and the values of its variables."""
    values = {name: rng.choice(pool) for name, pool in pools.items()}
    return rng.choice(STORIES).format(**values), values


def pools(thin: Thin, forms: Sequence[str] = ("base",)) -> dict[str, list[str]]:
    """Values of the five variables; those that may be asked for do not collide as the answers of these forms.

    The three kinds are thinned in turns, so that none of them takes up the first tokens of the others.
    """
    asked = {"name": NAMES, "city": CITIES, "occupation": OCCUPATIONS}
    turns = [(kind, row[i]) for row in zip_longest(*asked.values()) for i, kind in enumerate(asked) if row[i]]
    starts = sorted({" " if form == "base" else "" for form in forms})
    kept = thin(turns, *(lambda turn, start=start: start + turn[1] for start in starts))
    left = {kind: enough([v for k, v in kept if k == kind], 1, f"values of the {kind}") for kind in asked}
    return {**left, "time": list(TIMES), "season": list(SEASONS)}


def entities(values: dict[str, str]) -> tuple[Entity, ...]:
    """One entity for each variable; ``spaced`` is its value with the space that the base form needs."""
    return tuple(Entity(value, {"variable": name, "spaced": " " + value}) for name, value in values.items())


def prompt(form: str, text: str, values: dict[str, str], variable: str, question: str) -> Prompt:
    """A prompt in one of `FORMS`."""
    opening = "Read the story, then answer the question about it.\n\n"
    story_part: Part = ("context", f"Story: {text}\n\n")
    parts: tuple[Part, ...]
    if form == "question_first":
        head: Part = ("request", f"Read the story and answer this question about it.\n\nQuestion: {question}\n\n")
        parts = (head, story_part, ("request", UNIFORM))
    else:
        ending = UNIFORM if form == "uniform_prefix" else f"Answer: {PREFIXES[variable]}"
        parts = (("context", opening), story_part, ("request", f"Question: {question}\n{ending}"))
    attribute = "spaced" if form == "base" else "name"
    return Prompt(parts, Query(attribute, {"variable": variable}), entities(values))


def read(text: str) -> str:
    """Parse a prompt without its abstract meaning: the answer by question and word lists."""
    question = re.search(r"Question: (.*?)\n", text)[1]
    variable = next(name for name, phrasings in QUESTIONS.items() if question in phrasings)
    told = re.search(r"Story: (.*?)\n", text)[1]
    words = {"name": NAMES, "city": CITIES, "occupation": OCCUPATIONS}[variable]
    (found,) = {word for word in words if re.search(rf"\b{word}\b", told)}
    return found if text.endswith('"') else " " + found


def _generator(forms: tuple[str, ...]):
    def generate(n: int, rng: random.Random, thin: Thin) -> Iterator[Prompt]:
        available = pools(thin, forms)
        drawn = [forms[i % len(forms)] for i in range(n)]
        rng.shuffle(drawn)
        for form in drawn:
            text, values = story(rng, available)
            variable = rng.choice(QUERIED)
            yield prompt(form, text, values, variable, rng.choice(QUESTIONS[variable]))

    return generate


register_task("question_answering/base", _generator(("base",)), "story, then question with its own prefix", paper=True)
register_task("question_answering/uniform_prefix", _generator(("uniform_prefix",)), "all end alike", paper=True)
register_task("question_answering/question_first", _generator(("question_first",)), "question, then story", paper=True)
register_task("question_answering/mixed", _generator(FORMS), "one third of each form", paper=True)
