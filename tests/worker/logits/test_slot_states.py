"""State by slot, and places of vocabulary ids in the flattened logits."""

import numpy as np
import torch

from services.worker.logits.slot_states import SlotStates, flat_indices, repeated


def test_a_slot_has_the_state_that_was_put_last() -> None:
    states: SlotStates[str] = SlotStates(4)
    for slot, state in ((1, "a"), (3, "b"), (1, "c"), (0, "d"), (0, None)):
        states.put(slot, state)
    assert states.present(np.array([3, 0, 1, 2])).tolist() == [True, False, True, False]
    assert states.of(np.array([3, 1])) == ["b", "c"]


def test_places_in_the_flattened_logits_keep_the_order_of_the_ids() -> None:
    logits = torch.zeros(5, 10)
    ids = [torch.tensor(one, dtype=torch.int32) for one in ([7, 0], [], [9])]
    places = flat_indices(ids, [4, 1, 0], logits)
    assert places.tolist() == [47, 40, 9] and places.dtype == torch.int64


def test_values_are_repeated_as_often_as_their_counts_say() -> None:
    assert repeated([5, 6, 7], [2, 0, 1], torch.device("cpu")).tolist() == [5, 5, 7]
