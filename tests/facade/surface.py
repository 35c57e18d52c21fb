"""The same calls on kafka-python's producer and on ours: what came of each, and when.

A case is a piece of Python, as it stands in the table of docs/compatibility.md where the two
differ. In it `K(…)` builds a producer, `p` is one that is open, `held` one that lingers, `closed`
one that is closed, `lost` one whose brokers are silent, `refused` one that had a record refused.
What comes of it is a value, an error at once, or what its future comes to. An error of ours is the
same as theirs if their `except` catches it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import kafka
from kafka.future import Future

import outlast
from outlast.testing import Error, MockCluster

METADATA = 3
WAIT_S = 5.0
WITHOUT_NETWORK = {"bootstrap_servers": "127.0.0.1:1", "api_version": (2, 8)}


@dataclass(frozen=True)
class Outcome:
    """What came of a call."""

    moment: str  # returns, raises, its future fails, its future is delivered, its future is pending
    value: str = ""
    error: BaseException | None = None

    def __str__(self) -> str:
        what = self.value if self.error is None else error_name(self.error)
        return f"{self.moment} {what}".strip()

    def same_as(self, theirs: Outcome) -> bool:
        """Whether code that was written for theirs sees no difference."""
        if self.error is None or theirs.error is None:
            return str(self) == str(theirs)
        return self.moment == theirs.moment and isinstance(self.error, type(theirs.error))


def error_name(error: BaseException) -> str:
    """Its class, or of one of ours the class of kafka-python's or Python's that it is."""
    for kind in type(error).__mro__:
        if not kind.__module__.startswith("outlast"):
            return kind.__name__
    raise AssertionError(error)


def outcome_of(call: Callable[[], Any]) -> Outcome:
    """Do it, and wait for its future if there is one."""
    try:
        value = call()
        if not isinstance(value, Future):
            return Outcome("returns", shown(value))
    except Exception as error:
        return Outcome("raises", error=_bare(error))
    try:
        value.get(timeout=WAIT_S)
    except kafka.errors.KafkaTimeoutError as error:
        if not value.is_done:
            return Outcome("its future is pending")
        return Outcome("its future fails:", error=_bare(error))
    except Exception as error:
        return Outcome("its future fails:", error=_bare(error))
    return Outcome("its future is delivered")


def _bare(error: Exception) -> Exception:
    """Without what it would keep alive: half-built producers of theirs, among others."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def shown(value: Any) -> str:
    """A value as the table shows it; of an object only what it is."""
    if value is None or isinstance(value, (bool, int, str, tuple, set, dict, frozenset)):
        return repr(value)
    theirs = next(kind for kind in type(value).__mro__ if not kind.__module__.startswith("outlast"))
    return f"a {(type(value) if theirs is object else theirs).__name__}"


# --- building one ---------------------------------------------------------------------------------

BUILT = """
nonsense=1
buffer_memory=1_000_000
transactional_id='t'
transactional_id='t', enable_idempotence=False
transactional_id='t', acks=1
enable_idempotence=True, acks=1
enable_idempotence=True, acks=0
enable_idempotence=True, retries=0
enable_idempotence=True, max_in_flight_requests_per_connection=6
enable_idempotence=True, api_version=(0, 10)
enable_idempotence=False
acks=0
acks=1
acks='all'
acks=-1
acks=2
acks='1'
retries=0
retries=-1
retries=float('inf')
max_in_flight_requests_per_connection=6
max_in_flight_requests_per_connection=0
delivery_timeout_ms=1
delivery_timeout_ms=30_000, linger_ms=1
linger_ms=-1
linger_ms='5'
batch_size=-5
batch_size=0
max_block_ms=-1
request_timeout_ms=-1
metadata_max_age_ms=-1
compression_type='foo'
compression_type='gzip'
compression_type='snappy'
compression_type='lz4'
compression_type='zstd'
compression_type='zstd', api_version=(2, 0)
compression_type=1
client_dns_lookup='x'
client_dns_lookup='resolve_canonical_bootstrap_servers_only'
api_version=(0, 8, 2)
api_version=(0, 10)
api_version=(9, 9)
api_version='2.8'
api_version='new'
api_version=2
security_protocol='FOO'
security_protocol='SSL', ssl_cafile='no/such/file.pem'
security_protocol='SASL_PLAINTEXT'
security_protocol='SASL_PLAINTEXT', sasl_mechanism='FOO'
security_protocol='SASL_PLAINTEXT', sasl_mechanism='PLAIN'
bootstrap_servers='a:b'
bootstrap_servers=[]
bootstrap_servers=7
key_serializer=3
value_serializer='utf-8'
value_serializer=str.encode
partitioner=3
partitioner=None
partitioner=lambda key, every, available: every[0]
client_id=7
metric_reporters=[3]
metric_reporters='x'
metrics_enabled=False
proxy_url='foo.bar'
socket_options=[1]
receive_buffer_bytes=-1
selector=3
kafka_client=3
"""

# --- using one ------------------------------------------------------------------------------------

CALLED = """
p.send('t')
p.send('t', None, b'k')
p.send('t', b'')
p.send('t', b'v', b'')
p.send('t', 'text')
p.send('t', 5)
p.send('t', bytearray(b'v'))
p.send('t', memoryview(b'v'))
p.send('t', b'v', 'key')
p.send('t', b'v', bytearray(b'k'))
p.send('t', b'v', partition=2)
p.send('t', b'v', partition=3)
p.send('t', b'v', partition=-1)
p.send('t', b'v', partition='0')
p.send('t', b'v', partition=True)
p.send('t', b'v', timestamp_ms=0)
p.send('t', b'v', timestamp_ms=-1)
p.send('t', b'v', timestamp_ms='x')
p.send('t', b'v', timestamp_ms=1.5)
p.send('t', b'v', headers=[])
p.send('t', b'v', headers=[('a', b'1'), ('a', b'')])
p.send('t', b'v', headers=[('a', None)])
p.send('t', b'v', headers=[('a', '1')])
p.send('t', b'v', headers=[(b'a', b'1')])
p.send('t', b'v', headers=[['a', b'1']])
p.send('t', b'v', headers=(('a', b'1'),))
p.send('t', b'v', headers={'a': b'1'})
p.send('', b'v')
p.send('.', b'v')
p.send('a b', b'v')
p.send('x' * 250, b'v')
p.send(5, b'v')
p.send(None, b'v')
p.send(b't', b'v')
p.send('t', b'v' * 1_048_577)
p.send('t', b'v' * 1_048_000)
p.send('unknown', b'v')
p.send('forbidden', b'v')
p.send('invalid', b'v')
held.send('t', b'v').succeeded()
held.send('t', b'v').exception
held.send('t', b'v').retriable()
held.send('t', b'v').get(-1)
held.send('t', b'v').get('x')
p.send('t', b'v').add_callback(print, 1, end='')
p.send('t', b'v').add_errback(None)
p.partitions_for('t')
p.partitions_for('unknown')
p.partitions_for('forbidden')
p.partitions_for('')
p.partitions_for(5)
p.flush()
p.flush(timeout=0)
p.flush(timeout=5)
p.flush(timeout=-1)
p.close(timeout=-1)
p.close(timeout=float('nan'))
[p.partitions_for('t'), p.bootstrap_connected()][1]
p.max_usable_produce_magic((2, 8))
p.init_transactions()
p.begin_transaction()
p.send_offsets_to_transaction({}, 'group')
p.commit_transaction()
p.abort_transaction()
p.__enter__()
str(p)
p.config['acks']
p.config['client_id']
p.config['api_version'] >= (2, 0)
p.config['enable_idempotence']
p._transaction_manager.is_transactional()
p._closed
p.gaps()
p.stalls()
p.health()
held.send('t', b'v').gaps
held.send('t', b'v').node_id
closed.send('t', b'v')
closed.send('t')
closed.flush()
closed.partitions_for('t')
closed.partitions_for('new')
closed.metrics()
closed.close()
closed.close(timeout=-1)
closed.bootstrap_connected()
closed._closed
"""

# of a cluster that has fallen silent: each takes its time
LOST = """
lost.send('t', b'v')
lost.send('other', b'v')
lost.partitions_for('other')
lost.flush(timeout=0.2)
lost.flush(timeout=0)
lost.close(timeout=0.2)
lost.send('t', b'v', partition=0)
"""

# of one that had a record refused before
AFTER = "refused.send('t', b'v')"

# What a broker answers to Produce with, that it will answer again.
REFUSED = (10, 17, 18, 21, 29, 31, 32, 42, 43, 44, 76, 87)


def cases(text: str) -> list[str]:
    """One a line."""
    return text.strip().splitlines()


@dataclass(frozen=True)
class Kind:
    """One of the two classes, and what its cases are evaluated with."""

    producer: Callable[..., Any]

    def built(self, case: str) -> Outcome:
        """Build one with these keywords, and close it."""

        def build() -> str:
            keywords = {**WITHOUT_NETWORK, **eval(f"dict({case})")}
            producer = self.producer(**keywords)
            with contextlib.suppress(kafka.errors.KafkaTimeoutError):
                producer.close(timeout=0)
            return ""

        return _named(outcome_of(build), "is built")

    def called(self, servers: str) -> Iterator[tuple[str, Outcome]]:
        """The outcomes of CALLED, on one producer for as long as nothing has gone wrong."""
        keywords = {"bootstrap_servers": servers, "client_id": "me", "max_block_ms": 500}
        closed = self.producer(**keywords)
        closed.send("t", b"v").get(timeout=WAIT_S)
        closed.close()
        names = {
            "p": self.producer(**keywords),
            "held": self.producer(**keywords, linger_ms=2_000),
            "closed": closed,
        }
        for case in cases(CALLED):
            outcome = outcome_of(lambda case=case: eval(case, names))
            yield case, outcome
            if outcome.moment == "its future fails:":  # theirs may be good for nothing now
                names["p"].close()
                names["p"] = self.producer(**keywords)
        names["p"].close()
        names["held"].close()

    def refused(self, cluster: MockCluster, code: int) -> Outcome:
        """Send one record to a cluster that answers with this error."""
        fault = Error(code)
        cluster.faults.append(fault)
        producer = self.producer(bootstrap_servers=cluster.bootstrap_servers)
        try:
            return outcome_of(lambda: producer.send("t", b"v"))
        finally:
            producer.close()
            cluster.faults.remove(fault)

    def after_a_refusal(self, cluster: MockCluster) -> Outcome:
        """A record that nothing is wrong with, after one that the broker refused."""
        producer = self.producer(bootstrap_servers=cluster.bootstrap_servers)
        try:
            cluster.faults.append(Error(87, times=1))  # INVALID_RECORD
            outcome_of(lambda: producer.send("t", b"refused"))
            return outcome_of(lambda: eval(AFTER, {"refused": producer}))
        finally:
            producer.close()

    def lost(self, case: str) -> Outcome:
        """The case on a producer whose cluster has just fallen silent. Not an idempotent one: there
        kafka-python at times settles nothing any more once a record has expired.
        """
        with MockCluster(1, topics={"t": 1, "other": 1}) as cluster:
            producer = self.producer(
                bootstrap_servers=cluster.bootstrap_servers,
                max_block_ms=500,
                delivery_timeout_ms=1_000,
                request_timeout_ms=800,
                enable_idempotence=False,
            )
            producer.send("t", b"v").get(timeout=WAIT_S)
            cluster.pause(1)
            held = producer.send("t", b"held")  # what flush and close wait for
            told = outcome_of(lambda: eval(case, {"lost": producer}))
            outcome_of(lambda: held)  # its time-out frees theirs, which has no other end
            with contextlib.suppress(kafka.errors.KafkaTimeoutError):
                producer.close(timeout=0.5)
        return told

    def all_lost(self) -> dict[str, Outcome]:
        """The outcomes of LOST, side by side: they mostly wait."""
        with ThreadPoolExecutor(len(cases(LOST))) as threads:
            return dict(zip(cases(LOST), threads.map(self.lost, cases(LOST)), strict=True))


def _named(outcome: Outcome, moment: str) -> Outcome:
    return outcome if outcome.error else Outcome(moment)


THEIRS = Kind(kafka.KafkaProducer)
OURS = Kind(outlast.KafkaProducer)


# --- what there is to see -------------------------------------------------------------------------


def members(thing: Any) -> dict[str, str]:
    """Public names of a class or an object, and what each is: a signature, or a type."""
    found = {}
    for name in dir(thing):
        if not name.startswith("_"):
            value = inspect.getattr_static(thing, name)
            value = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            found[name] = signature(value) if inspect.isroutine(value) else "an attribute"
    return found


def signature(function: Any) -> str:
    """Names, kinds and defaults of its parameters, without annotations."""
    described = inspect.signature(function)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in described.parameters.values()
    ]
    return str(described.replace(parameters=bare, return_annotation=inspect.Signature.empty))
