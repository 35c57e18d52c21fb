"""Other designs than Kafka's, as settings of the mock cluster: what a failover costs there.

Rules: a preset differs from `KRAFT` in what its design does and in the clocks that follow from it,
and in nothing else. Each clock has its source beside it; "assumed" is a guess of ours, to be
replaced by who knows better: `replace(MAJORITY, detect_s=…)`. None was measured on a cluster of
that kind by us. What each costs, and what is not modelled, is in docs/explanation/designs.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from outlast.testing.cluster_settings import FAST, KRAFT, ClusterSettings

MAJORITY = replace(
    KRAFT,
    acks_all="majority",
    detect_s=(1.35, 2.25),
    controller_detect_s=None,
    fetch_backoff_p=0.0,
)
"""Majority write: each partition is a Raft group, as in Redpanda.

* `acks_all`: a record is acknowledged when most replicas have it, and a leader is elected by most
  of them: a dead or late minority holds up nobody. `min_isr` means nothing.
* `detect_s`: a follower calls an election 1.5 s after the last heartbeat, which comes each 150 ms
  (defaults in Redpanda's documentation of its architecture), and up to half as long later, so that
  not all call at once (its `simple_time_jitter`).
* `controller_detect_s`: every group elects for itself; no node is special.
* `fetch_backoff_p`: a leader sends, followers do not ask. So none asks too early.
"""

DETACHED = replace(
    KRAFT,
    acks_all="store",
    replication_s=(0.15, 0.25),
    promote_s=(1.0, 3.0),
    role_lag_s=(0.5, 1.5),
    controller_detect_s=None,
    fetch_backoff_p=0.0,
)
"""Detached storage: brokers over an object store, as AutoMQ and WarpStream.

* `acks_all`: a record is acknowledged when the store has it. There are no followers, and any
  replica may take its partition over, with everything in it.
* `replication_s`: a write to the store. A record that comes during one goes into the next, so an
  ack takes 0.15 to 0.5 s; WarpStream collects for 250 ms and tells of 400 ms in 99 of 100 cases.
* `detect_s` is that of `KRAFT`: AutoMQ keeps Kafka's controllers and their session time-out.
* `promote_s`: what the dead node had written ahead is read first; assumed: some seconds.
* `role_lag_s`: a partition is closed here and opened there within about 1.5 s (AutoMQ tells of a
  reassignment); assumed: after a crash as well.
* `fetch_backoff_p`: nobody follows.
* `controller_detect_s`: the controllers run on nodes of their own, and do not die in the story.
"""

QUEUE = replace(
    KRAFT,
    acks_all="store",
    replication_s=(0.002, 0.006),
    detect_s=(20.0, 30.0),
    role_lag_s=(0.1, 0.3),
    controller_detect_s=None,
    fetch_backoff_p=0.0,
)
"""Queue-shaped: a broker owns a topic's partition by lease and stores nothing, as in Pulsar, which
keeps records on storage nodes (BookKeeper); those write to several and wait for the quickest.

* `acks_all`: a record is acknowledged when the storage nodes have it; they never fail here.
* `replication_s`: a few synced writes to disks in parallel; assumed.
* `detect_s`: an owner's lease is its session with the metadata store, which ends after 30 s
  (`metadataStoreSessionTimeoutMillis`); the last sign of life is up to a third of that old, as
  ZooKeeper's clients send one so often.
* `role_lag_s`: a partition is unloaded here and loaded there; assumed.
* `fetch_backoff_p`: nobody follows.
* `controller_detect_s`: brokers have no part in it.
"""

HOSTED = replace(
    KRAFT,
    crash_resets=False,
    replication_s=(0.002, 0.008),
    startup_s=(300.0, 900.0),
    controller_detect_s=None,
)
"""Hosted: Apache Kafka in three zones that somebody else patches, as Amazon MSK.

* What is usual is no crash: brokers are stopped in order, one at a time, and come back (`stop`).
* `crash_resets`: what does crash is a machine, perhaps behind a proxy. Nobody resets connections:
  they fall silent; assumed.
* `replication_s`: replicas are in other zones, some milliseconds away; assumed.
* `startup_s`: a broker's restart takes 5 to 15 minutes (AWS, of maintenance of MSK).
* `controller_detect_s`: controllers run on machines of their own (KRaft on MSK).
* The way from the client is longer, too: that is the network's business (`NetworkSettings`).
"""

DESIGNS: Mapping[str, ClusterSettings] = {
    "fast": FAST,
    "kraft": KRAFT,
    "majority": MAJORITY,
    "detached": DETACHED,
    "queue": QUEUE,
    "hosted": HOSTED,
}
"""All presets by name, as `outlast cluster --design` takes them."""
