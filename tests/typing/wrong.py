"""What a type checker must complain about, in each line that says so."""

from __future__ import annotations

from outlast import Gap, KafkaProducer

producer = KafkaProducer()
producer.send()  # wrong
producer.send("t", b"v", offset=3)  # wrong
producer.flush("soon")  # wrong
number: int = producer.gaps()  # wrong
offset: str = producer.send("t", b"v").get(timeout="1")  # wrong
producer.send_many("t", 7)  # wrong
producer.send_many("t", [b"v"], key=b"k")  # wrong
text: str = producer.send_many("t", [b"v"]).get(timeout=1)  # wrong
producer.send_many("t", [b"v"])["first"]  # wrong


def on_gap(gap: Gap) -> None:
    print(gap.no_such_name)  # wrong
