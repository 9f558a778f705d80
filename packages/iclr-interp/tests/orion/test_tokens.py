import pytest
import torch

from iclr_interp.orion import (
    CollisionError,
    MisfitError,
    collisions,
    encode,
    first_token,
    soft_match,
    value_ids,
    word_tokenizer,
)
from iclr_interp.orion.tokens import check_collisions, check_fit, pad
from iclr_shared.errors import InputError


@pytest.mark.parametrize(
    ("prediction", "truth", "matches"),
    [
        ("Par", " Paris", True),
        ("Paris!", "paris", True),
        ("", "x", False),
        (" ", "x", False),
        ("Rome", "Paris", False),
        ("new york", "NewYork", True),
    ],
)
def test_soft_match(prediction, truth, matches):
    assert soft_match(prediction, truth) is matches


def test_one_opening_token_whatever_tokenizer_and_text_bring(pieces, tokenizer):
    assert pieces("Paris").input_ids[0] == 1  # it would add one itself
    for reader in (pieces, tokenizer):
        start = reader.bos_token
        for text in ("In Paris", f"{start}In Paris", f"{start}{start}In Paris"):
            ids = encode(reader, text)
            assert ids.count(reader.bos_token_id) == 1
            assert ids[0] == reader.bos_token_id
    words = word_tokenizer(["a", "b", "pad"])
    assert encode(words, "b a") == [1, 0]


def test_first_token_is_never_the_bare_word_mark(pieces, tokenizer):
    assert "▁" in pieces.convert_ids_to_tokens(pieces(" Paris", add_special_tokens=False).input_ids)  # alone it is
    for value in (" Paris", " London", " vet"):
        assert pieces.convert_ids_to_tokens(value_ids(pieces, value))[0] not in ("▁", "<unk>")
        assert first_token(pieces, value).strip()
        assert value.strip().startswith(first_token(tokenizer, value).strip())
    assert first_token(tokenizer, " 5") != first_token(tokenizer, "5")


def test_fit(tokenizer, pieces):
    for reader in (tokenizer, pieces):
        check_fit(reader, "The story takes place in the city of", " Paris")
    with pytest.raises(MisfitError, match=r"' Paris'|'Paris' does not fit.*together they end in .*apart in"):
        check_fit(tokenizer, "The story takes place in the city of ", "Paris")


def test_collisions(tokenizer):
    values = [" Paris", " Paris", " Paris again", " London"]
    assert collisions(tokenizer, values) == [(" Paris", " Paris again")]
    with pytest.raises(CollisionError, match="' Paris' and ' Paris again' begin with the same token ' Paris'"):
        check_collisions(tokenizer, values)
    check_collisions(tokenizer, values[:2])


def test_padding_is_on_the_right(pieces):
    batch = pad([encode(pieces, "In"), encode(pieces, "In the city of Paris")], pieces.eos_token_id)
    assert batch.ids[0, 0] == 1
    assert batch.mask[0].tolist() == sorted(batch.mask[0].tolist(), reverse=True)
    assert batch.ends.tolist() == [int(row.sum()) - 1 for row in batch.mask]
    assert torch.equal(batch.ids[0, batch.ends[0] + 1 :], torch.full_like(batch.ids[0, batch.ends[0] + 1 :], 2))


@pytest.mark.parametrize("rows", [[], [[1], []]])
def test_nothing_to_pad(rows):
    with pytest.raises(InputError, match="at least one"):
        pad(rows)


def test_a_value_without_tokens(tokenizer):
    with pytest.raises(InputError, match="'' has no tokens"):
        value_ids(tokenizer, "")
