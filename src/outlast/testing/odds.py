"""How often what goes wrong in a random run, and how it looks: weights, error codes, delays."""

from __future__ import annotations

# Anywhere.
WEIGHTS = {
    "move": 6,
    "sweep": 12,
    "kill": 6,
    "crash": 5,
    "blackout": 2,
    "stop": 1,
    "pause": 2,
    "reset": 6,
    "cut": 2,
    "refuse": 1,
    "deafen": 2,
    "freeze": 1,
    "slow": 1,
    "slow_follower": 2,
    "slow_partition": 2,
    "limit": 1,
    "error": 4,
    "lose": 2,
    "break_request": 3,
    "throttle": 1,
    "garble": 1,
    "stale": 2,
    "leaderless": 1,
    "forget": 2,
    "create": 2,
    "recreate": 1,
    "grow": 1,
    "pause_driver": 1,
}

# Where some nodes and partitions have all the trouble, and the others must hardly notice.
BESIDE = {
    "kill": 3,
    "pause": 6,
    "stop": 1,
    "slow_follower": 12,
    "slow_partition": 4,
    "move": 2,
    "sweep": 1,
    "throttle": 1,
    "limit": 1,
    "reset": 1,
    "cut": 1,
    "break_request": 1,
    "error": 1,
}

# Codes of refusals, by what they mean; none says "not written" of what is written.
ELSEWHERE = (3, 5, 6, 9, 56, 74, 75, 100, 103)
NOT_NOW = (2, 8, 14, 15, 16, 19, 51, 89)
NEVER = (10, 17, 29, 32, 42, 76, 87)
NUMBERING = (47, 49, 90)
IN_DOUBT = (-1, 7, 20)

LATE_S = (0.05, 0.4, 0.7, 1.2, 3.0, 30.0, 30.0)  # followers: merely slow, slow, stuck
