import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iclr_welfare as iw
from iclr_shared.errors import InputError


@pytest.fixture
def csv(tmp_path):
    def write(text):
        path = tmp_path / "people.csv"
        path.write_text(text)
        return path

    return write


def test_columns_round_trip(csv):
    np.testing.assert_array_equal(iw.read_csv(csv("name, welfare\nann, 1.5\nbob, -2e3\n"), "welfare"), [1.5, -2000])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; it needs a header"),
        ("income\n1\n", "no column 'welfare', only income"),
        ("welfare,b\n,1\n,2\n", "Column 'welfare' of .* is empty"),
        ("welfare\n", "is empty"),
        ("welfare\n1\nmuch\n3\nlots\n", r"not a number in row 2 \('much'\), 4 \('lots'\)"),
        ("welfare,b\n1,1\n,2\n3,3\n", "missing in row 2"),
        ("welfare\n1\n-inf\n", r"infinite in row 2"),
        ("welfare\n1\nnan\n", "missing in row 2"),
        ("welfare\nTrue\nFalse\n", r"not a number in row 1 \('True'\)"),
        ("welfare\n1,9\n2,9\n", "cannot be read as a CSV file"),
        ("welfare,b\n1,2\n3,4,5\n", "cannot be read as a CSV file"),
        ("welfare,welfare\n1,2\n", "more than one column 'welfare'"),
    ],
)
def test_bad_files_name_the_rows(csv, text, message):
    with pytest.raises(InputError, match=message):
        iw.read_csv(csv(text), "welfare")


def test_no_file(tmp_path):
    with pytest.raises(InputError, match="There is no file"):
        iw.read_csv(tmp_path / "absent.csv", "welfare")
    with pytest.raises(InputError, match="cannot be read as a CSV file"):
        iw.read_csv(tmp_path, "welfare")


def test_grouping_as_in_the_official_code():
    incomes = np.concatenate(
        [np.full(450, 20_000.0), np.full(10, 70_000.0), np.full(201, -500.0), [-25_000.0, 620_000.0]]
    )
    U0 = iw.from_incomes(incomes, 200, rng=np.random.default_rng(0))
    # ceil(1/200), ceil(201/200), ceil(450/200), ceil(10/200), ceil(1/200)
    counts = np.histogram(U0, [-30, -10, 0, 50, 100, 500, 630])[0]
    np.testing.assert_array_equal(counts, [1, 2, 3, 1, 0, 1])
    np.testing.assert_array_equal(U0, np.round(U0))
    finer = iw.from_incomes(incomes, 40, rng=np.random.default_rng(0))
    assert finer.size == 1 + 6 + 12 + 1 + 1


@given(st.lists(st.floats(-9_000, 499_000), min_size=1, max_size=50), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_every_group_is_represented(incomes, group):
    U0 = iw.from_incomes(incomes, group, rng=np.random.default_rng(0))
    assert U0.size >= len(incomes) / group
    assert U0.size <= len(incomes) / group + 13
    assert U0.min() >= np.floor(min(incomes) / 10_000) * 10 - 50
    assert U0.max() <= max(max(incomes), 0) / 1000 + 50


@pytest.mark.parametrize(
    ("incomes", "group", "message"),
    [
        ([], 200, "Incomes are empty"),
        ([1.0, np.nan, 2.0, -np.inf, 1e18], 200, r"not so in row 2 \(nan\), 4 \(-inf\), 5 \(1e\+18\)"),
        ([1.0], 0, "group"),
        ([1.0], np.inf, "group"),
    ],
)
def test_bad_incomes(incomes, group, message):
    with pytest.raises(InputError, match=message):
        iw.from_incomes(incomes, group, rng=np.random.default_rng(0))


def test_survey():
    incomes = iw.load_401ksubs()
    assert incomes.shape == (9275,)
    assert (incomes.min(), incomes.max()) == pytest.approx((10_008, 199_041))
    assets = iw.load_401ksubs("nettfa")
    assert (assets.min(), assets.max()) == pytest.approx((-502_302, 1_536_798))
    assert 45 <= iw.from_incomes(incomes, 200, rng=np.random.default_rng(0)).size <= 55
    with pytest.raises(InputError, match="'inc' or 'nettfa'"):
        iw.load_401ksubs("age")


def test_population_with_parameters_of_their_own(csv):
    text = "welfare,f_minus,f_plus,g_plus,g_minus,g_x_plus\n1,50,90,2,1,-1800\n2,60,95,3,1.5,-1700\n"
    people = iw.read_population(csv(text))
    np.testing.assert_array_equal(people.U0, [1, 2])
    np.testing.assert_array_equal(people.f_plus, [90, 95])
    np.testing.assert_array_equal(people.g_plus, [2, 3])
    np.testing.assert_allclose(people.g(np.array([-1800.0, -1700.0])), [2, 3])
    np.testing.assert_allclose(people.g(np.array([-1550.0, -1550.0])), [1, 1.5])


def test_population_with_limits_for_all(csv):
    file = csv("welfare,g_plus\n1,2\n2,3\n")
    levels = {"f_minus": 100.0, "f_plus": 120.0, "g_plus": 9.0, "g_minus": 1.0}
    people = iw.read_population(file, levels=lambda N: levels)
    np.testing.assert_array_equal(people.g_plus, [2, 3])
    np.testing.assert_array_equal(people.f_plus, [120, 120])
    with pytest.raises(InputError, match="no column 'g_minus' and no value"):
        iw.read_population(file)
    with pytest.raises(InputError, match="do not go with grouped"):
        iw.read_population(file, group=200, rng=np.random.default_rng(0))
    with pytest.raises(InputError, match=r"f_minus must be a positive number, but is -3 in row 2 of"):
        iw.read_population(csv("welfare,f_minus\n1,2\n2,-3\n"), levels=lambda N: levels)
    with pytest.raises(InputError, match="give a generator"):
        iw.read_population(csv("welfare\n1\n2\n"), group=1)
