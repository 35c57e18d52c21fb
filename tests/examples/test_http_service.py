"""examples/http_service.py: 202 is a place in the log, 503 says what is known."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx

from outlast.testing import Error, LoseResponse, MockCluster
from tests.examples.programs import command, server, values

COUNT = 300
COMMAND = [*command("http_service.py"), "--port", "0"]


async def posted(address: str, cluster: MockCluster) -> dict[str, httpx.Response]:
    """The answers to a steady load, in which a leader is killed and another one moved."""
    answers = {}
    limits = httpx.Limits(max_connections=20)
    async with httpx.AsyncClient(base_url=address, timeout=30, limits=limits) as client:

        async def post(order: str) -> None:
            answers[order] = await client.post("/orders", json={"id": order, "item": "tea"})
            if len(answers) == COUNT // 3:
                leader = cluster.leader("orders", 0)
                assert leader is not None
                cluster.kill(leader)
            elif len(answers) == COUNT * 2 // 3:
                cluster.wait_until(cluster.all_led)
                cluster.move_leader("orders", 1)

        await asyncio.gather(*(post(f"order-{number}") for number in range(COUNT)))
    return answers


def test_a_failover_under_load_is_nothing_but_patience(tmp_path: Path) -> None:
    with MockCluster(topics={"orders": 6}) as cluster:
        with server(cluster, tmp_path / "log", *COMMAND) as (address, _):
            answers = asyncio.run(posted(address, cluster))
        assert {answer.status_code for answer in answers.values()} == {202}
        logs = {p: cluster.records("orders", p) for p in range(6)}
        for order, answer in answers.items():
            place = answer.json()
            record = logs[place["partition"]][place["offset"]]
            assert record.offset == place["offset"]
            assert json.loads(record.value or b"") == {"id": order, "item": "tea"}
        assert sum(map(len, logs.values())) == COUNT  # each once


def test_what_did_not_get_there_is_told_as_it_is(tmp_path: Path) -> None:
    with MockCluster(topics=["other"]) as cluster:
        with (
            server(cluster, tmp_path / "log", *COMMAND, PATIENCE_MS="1000") as (address, _),
            httpx.Client(base_url=address, timeout=30) as client,
        ):

            def outcome(order: str) -> str:
                answer = client.post("/orders", json={"id": order, "item": "tea"})
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "1"
                told: str = answer.json()["outcome"]
                return told

            assert outcome("no such topic") == "never sent"
            cluster.create_topic("orders")
            cluster.faults.append(Error(19, topic="orders"))  # NOT_ENOUGH_REPLICAS
            assert outcome("refused") == "not accepted"
            cluster.faults[:] = [LoseResponse(api=0)]
            assert outcome("in doubt") == "unknown"
            cluster.faults.clear()
            answer = client.post("/orders", json={"id": "good", "item": "tea"})
            assert answer.status_code == 202
            assert client.post("/orders", json={"id": ""}).status_code == 422
        found = [json.loads(value or b"")["id"] for value in values(cluster, "orders")]
        assert found == ["in doubt", "good"]  # it was there, and nobody could know
