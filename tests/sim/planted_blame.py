"""Planted bugs in who is blamed for a stuck partition. How: `mutants`."""

from __future__ import annotations

from tests.sim.mutants import Mutant, Story
from tests.sim.planted_order import edit


def blame(test: str, *arguments: object) -> Story:
    """A story about followers that are blamed, and about those that are not."""
    return Story("sim.test_lanes_blame", test, arguments)


BLAME = (
    Mutant(
        "a stuck partition blames all its followers",
        "Those of one that is stuck later are in doubt, although an earlier one's explains it: "
        "who was cleared is suspect again for the same cause.",
        edit("lanes.Lanes._blamed_followers", "known or gone or followers", "gone or followers"),
        blame("test_a_follower_that_explains_one_stuck_partition_explains_the_next"),
    ),
    Mutant(
        "a node that is down explains nothing",
        "Who shares only a healthy follower is suspect, and waits for those that are stuck.",
        edit("lanes.Lanes._blamed_followers", "known or gone or followers", "known or followers"),
        blame("test_a_follower_that_is_known_to_be_down_explains_it"),
    ),
    Mutant(
        "a node that goes down later explains nothing",
        "Who is blamed is reckoned anew only by an answer.",
        edit("lanes.Lanes._blamed_followers", "self._changed_nodes.update(self._blamed)", "pass"),
        blame("test_a_follower_that_is_known_to_be_down_explains_it_later"),
    ),
    Mutant(
        "a follower that acks is to blame all the same",
        "The other follower is not in doubt, and who has it takes the open lane.",
        edit("lanes.Lanes._prove", "proved[follower] = sent_s", "pass"),
        blame("test_a_follower_that_acks_explains_nothing_any_more", 3.0),
    ),
    Mutant(
        "an ack changes nothing for those who are stuck already",
        "Their other followers are not in doubt until somebody else is stuck.",
        edit("lanes.Lanes._prove", "self._changed_nodes.add(node_id)", "pass"),
        blame("test_a_follower_that_acks_explains_nothing_any_more", 7.5),
    ),
)
