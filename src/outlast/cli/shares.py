"""Whose time a gap was, for people: the cluster's and the client's share, least and most.

The cluster's is the recorder's (`engine/gap_state.py`). What is left is not all the client's: while
the attempt that was accepted is under way (*resuming*), a broker may wait for its followers, and
nobody sees from outside what it does. So that time counts in the client's most, not in its least.
"""

from __future__ import annotations

from outlast.engine.messages import Gap


def cluster_s(gap: Gap) -> tuple[float, float]:
    """The cluster's share of a gap. Of an open one nothing is known yet."""
    if gap.ended_by is None:
        return 0.0, gap.duration_s
    most_s = min(gap.cluster_s_max, gap.duration_s)
    return min(gap.cluster_s_min, most_s), most_s


def client_s(gap: Gap) -> tuple[float, float]:
    """The client's."""
    least_s, most_s = cluster_s(gap)
    return max(0.0, gap.duration_s - most_s - gap.resuming_s), gap.duration_s - least_s
