"""A schedule repeats with its seed, and has every kind, role and phase in its share."""

from collections import Counter
from itertools import islice

from tests.chaos.schedule import CUT, KILL, PAUSE, PHASES, ROLES, STOP, TOKENIZER, in_turn, strikes


def test_the_seed_repeats_a_schedule() -> None:
    first, second, other = (list(islice(strikes(seed), 50)) for seed in (3, 3, 4))
    assert first == second != other


def test_shares() -> None:
    planned = list(islice(strikes(1), 800))
    kinds = Counter(blow.kind for strike in planned for blow in strike.blows)
    for kind, share in ((KILL, 0.7), (STOP, 0.15), (PAUSE, 0.05), (CUT, 0.1)):
        assert abs(kinds[kind] / kinds.total() - share) < 0.01
    assert {strike.phase for strike in planned} == set(PHASES)
    assert {blow.role for strike in planned for blow in strike.blows} == set(ROLES)
    assert sum(len(strike.blows) == 2 for strike in planned) == 200


def test_roles_in_turn() -> None:
    planned = list(islice(in_turn(strikes(1), ROLES, 2), 8))
    assert all(len(strike.blows) == 1 for strike in planned)
    first, second, third = ROLES
    assert [strike.blows[0].role for strike in planned] == [first, first, second, second, third, third, first, first]


def test_two_at_once_hit_two_processes() -> None:
    pairs = [strike.blows for strike in islice(strikes(2), 400) if len(strike.blows) == 2]
    assert all(one.role != other.role or one.role == TOKENIZER for one, other in pairs)
