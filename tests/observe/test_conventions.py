"""Names, values and shape of spans are those of OpenTelemetry's messaging conventions 1.44."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import pytest
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import (
    error_attributes,
    network_attributes,
    server_attributes,
)
from opentelemetry.semconv.schemas import Schemas

from outlast.observe import attributes, send_spans

PUBLISHED = (messaging_attributes, error_attributes, network_attributes, server_attributes)


def current(module: ModuleType) -> dict[str, str]:
    """Constant → attribute of those that are not deprecated."""
    found = re.findall(
        r'^([A-Z_]+): Final = "([a-z_.]+)"\n(?:"""\n(.*?)"""\n)?',
        inspect.getsource(module),
        re.MULTILINE | re.DOTALL,
    )
    return {name: value for name, value, text in found if not text.startswith("Deprecated")}


KNOWN = {value for module in PUBLISHED for value in current(module).values()}
OURS = {
    value
    for name, value in vars(attributes).items()
    if name.isupper() and isinstance(value, str) and "." in value and ":" not in value
    if not value.startswith("outlast.")
}


def test_the_list_of_published_names_leaves_out_what_is_deprecated() -> None:
    assert "messaging.kafka.offset" in KNOWN
    assert "messaging.kafka.message.offset" not in KNOWN
    assert "messaging.operation" not in KNOWN
    assert len(KNOWN) > 30


def test_names_are_published_ones() -> None:
    assert len(OURS) >= 13
    assert OURS <= KNOWN


def test_constants_are_the_published_ones() -> None:
    pairs = {
        attributes.SYSTEM: messaging_attributes.MESSAGING_SYSTEM,
        attributes.OPERATION_NAME: messaging_attributes.MESSAGING_OPERATION_NAME,
        attributes.OPERATION_TYPE: messaging_attributes.MESSAGING_OPERATION_TYPE,
        attributes.BATCH_COUNT: messaging_attributes.MESSAGING_BATCH_MESSAGE_COUNT,
        attributes.DESTINATION: messaging_attributes.MESSAGING_DESTINATION_NAME,
        attributes.PARTITION: messaging_attributes.MESSAGING_DESTINATION_PARTITION_ID,
        attributes.CLIENT_ID: messaging_attributes.MESSAGING_CLIENT_ID,
        attributes.CLUSTER_ID: messaging_attributes.MESSAGING_KAFKA_CLUSTER_ID,
        attributes.OFFSET: messaging_attributes.MESSAGING_KAFKA_OFFSET,
        attributes.TOMBSTONE: messaging_attributes.MESSAGING_KAFKA_MESSAGE_TOMBSTONE,
        attributes.SERVER_ADDRESS: server_attributes.SERVER_ADDRESS,
        attributes.SERVER_PORT: server_attributes.SERVER_PORT,
        attributes.PEER_ADDRESS: network_attributes.NETWORK_PEER_ADDRESS,
        attributes.PEER_PORT: network_attributes.NETWORK_PEER_PORT,
        attributes.ERROR_TYPE: error_attributes.ERROR_TYPE,
    }
    assert all(ours == theirs for ours, theirs in pairs.items())
    assert set(pairs) == OURS


def test_values_are_published_ones() -> None:
    assert messaging_attributes.MessagingSystemValues.KAFKA.value == "kafka"
    assert messaging_attributes.MessagingOperationTypeValues.SEND.value == send_spans.SEND


def test_the_schema_is_that_of_1_44() -> None:
    assert Schemas.V1_44_0.value == attributes.SCHEMA_URL


@pytest.mark.parametrize("names", [attributes.GAP_AT_START, attributes.GAP_AT_END])
def test_what_the_conventions_do_not_know_has_a_prefix_of_ours(names: dict[str, object]) -> None:
    own = set(names) - KNOWN
    assert own
    assert all(name.startswith("outlast.") for name in own)
    assert not any(name.startswith("outlast.") for name in KNOWN)
