import pytest

from iclr_interp.orion import AmbiguousAnswerError, Entity, NoAnswerError, Query, answer
from iclr_shared.errors import InputError

CONTEXT = (Entity("Alice", {"city": "Paris", "job": "vet"}), Entity("Bob", {"city": "Rome", "job": "cook"}))


def test_reference_answers():
    assert answer(Query("job", {"name": "Bob"}), CONTEXT) == "cook"
    assert answer(Query("name", {"city": "Paris"}), CONTEXT) == "Alice"


def test_ambiguous_names_query_and_entities():
    with pytest.raises(AmbiguousAnswerError, match=r"city of the entity.*2 entities.*Alice, Bob"):
        answer(Query("city"), CONTEXT)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Query("age", {"name": "Bob"}), "Bob has no attribute 'age', only city, job, name"),
        (Query("job", {"name": "Carol"}), "No entity has {name=Carol}; the context holds Alice, Bob"),
    ],
)
def test_no_answer_names_query_and_entities(query, message):
    with pytest.raises(NoAnswerError, match=message):
        answer(query, CONTEXT)
    assert issubclass(NoAnswerError, InputError)
    assert issubclass(NoAnswerError, ValueError)


def test_an_empty_context_has_no_answer():
    with pytest.raises(NoAnswerError, match="no entities"):
        answer(Query("job"), ())


def test_exists_is_added_once_and_to_a_copy():
    filters = [("name", "Bob")]
    queries = [Query("job", filters) for _ in range(3)]
    assert filters == [("name", "Bob")]
    assert queries[0] == queries[2] == Query("job", {"name": "Bob", "exists": "yes"})
    assert len(queries[2].where) == 2
    assert str(queries[0]) == "job of the entity with {name=Bob}"
