"""A real Apache Kafka that asks who you are: two brokers with TLS, SASL and access lists.

Node 1 is broker and controller, node 2 a broker. Each has the listeners of `LISTENERS`; that of
the administrator is plain and may do everything. What clients may write is told by access lists:
users are allowed everything but the topics that a test takes from them.
"""

from __future__ import annotations

import atexit
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.real.certificates import DAY, Authority, Issued
from tests.real.kafka_cluster import (
    CLUSTER_ID,
    JVM,
    Node,
    bound_to_this_process,
    free_ports,
    until,
)
from tests.real.kafka_jars import LIBRARIES, fetch
from tests.real.metadata import MetadataConnection
from tests.real.security import MARK

if TYPE_CHECKING:
    from kafka.admin import ACL, KafkaAdminClient

HOST = "localhost"
# name → protocol, and what is special about it
LISTENERS = {
    "ADMIN": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",  # wants a certificate of the client
    "SHAKY": "SSL",  # its certificate is replaced by tests
    "LOGIN": "SASL_PLAINTEXT",
    "BOTH": "SASL_SSL",
    "LOGIN2": "SASL_PLAINTEXT",  # with more users of PLAIN (a listener's are fixed), short sessions
    "BOTH2": "SASL_SSL",
    "LOGIN_PLAIN_ONLY": "SASL_PLAINTEXT",
}
LATE_USERS = {"LOGIN2": ("late",), "BOTH2": ("late",)}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USER, PASSWORD = "alice", f"alice's {MARK} 1"
ODD_USER = "al,ice=1"  # SCRAM has characters that must be escaped
REAUTH_MS = 2000  # a session of OAUTHBEARER on the listeners that have short ones

_PROPERTIES = """\
process.roles={roles}
node.id={node_id}
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners={listeners}
advertised.listeners={advertised}
controller.listener.names=CONTROLLER
inter.broker.listener.name=ADMIN
listener.security.protocol.map=CONTROLLER:PLAINTEXT,{protocols}
log.dirs={folder}/data
auto.create.topics.enable=false
# One for each listener: several would show a new certificate one after the other.
num.network.threads=1
auto.leader.rebalance.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.cleaner.dedupe.buffer.size=4194304
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
ssl.keystore.type=PEM
ssl.truststore.type=PEM
ssl.truststore.location={truststore}
ssl.keystore.location={keystore}
ssl.allow.dn.changes=true
ssl.allow.san.changes=true
listener.name.mutual.ssl.client.auth=required
listener.name.shaky.ssl.keystore.location={shaky}
"""
_SASL = """\
listener.name.{name}.sasl.enabled.mechanisms={mechanisms}
listener.name.{name}.plain.sasl.jaas.config={plain}
listener.name.{name}.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.{name}.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.{name}.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
listener.name.{name}.oauthbearer.connections.max.reauth.ms={reauth_ms}
"""


class SecureKafka:
    """The two nodes, their certificates and their administrator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder, "authority")
        self.stranger = Authority(folder, "stranger")
        self._changes = 0
        self._admin: KafkaAdminClient | None = None
        self.good = self.authority.issue("broker", HOST, "127.0.0.1")
        self.expired = self.authority.issue("expired", HOST, lasts=-DAY)
        self.elsewhere = self.authority.issue("elsewhere", "other.test")
        ports = free_ports(2 * len(LISTENERS) + 1)
        self._controller_port = ports.pop()
        self._ports = {
            node_id: dict(zip(LISTENERS, ports[node_id - 1 :: 2], strict=True))
            for node_id in (1, 2)
        }
        self.nodes = {
            node_id: Node(node_id, ports["ADMIN"], None, folder / f"node-{node_id}")
            for node_id, ports in self._ports.items()
        }

    # --- life ---

    def open(self) -> None:
        fetch()
        atexit.register(self.close)
        for node in self.nodes.values():
            node.folder.mkdir()
            node.properties.write_text(self._properties(node.node_id))
        formats = [self._format(node) for node in self.nodes.values()]
        for node, formatting in zip(self.nodes.values(), formats, strict=True):
            said, _ = formatting.communicate(timeout=60)
            assert formatting.returncode == 0, said.decode()
            self._start(node)
        for node in self.nodes.values():
            until(lambda node=node: self._ready(node), f"node {node.node_id} ready")

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
        for node in self.nodes.values():
            if node.process is not None:
                node.process.kill()
                node.process.wait(timeout=20)
        atexit.unregister(self.close)

    # --- what tests ask of it ---

    def bootstrap(self, listener: str) -> str:
        """The address of node 1's listener."""
        return f"{HOST}:{self._ports[1][listener]}"

    def place(self, listener: str) -> tuple[str, int]:
        """The same as host and port."""
        return HOST, self._ports[1][listener]

    def create_topic(self, name: str, *, nodes: tuple[int, ...] = (1,)) -> None:
        """A topic with a partition on each of these nodes."""
        from kafka.admin import NewTopic

        admin = self.admin()
        assignment = {partition: [node] for partition, node in enumerate(nodes)}
        admin.create_topics([NewTopic(name, replica_assignments=assignment)])

        def known(node: Node) -> bool:
            with MetadataConnection("127.0.0.1", node.port) as asked:
                return asked.topics([name])[name].in_sync(len(nodes), 1)

        until(lambda: all(known(n) for n in self.nodes.values()), f"every node knows {name}")

    def set_scram(self, user: str, password: str) -> None:
        """Give a user this password, for both SCRAM mechanisms."""
        from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

        admin = self.admin()
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            told = admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(user, mechanism, password, iterations=4096)]
            )
            assert told == {user: None}, told

    def put_on_shaky(self, issued: Issued) -> None:
        """Have node 1 show this certificate on that listener."""
        self._changes += 1  # a node looks at the file only if the setting changes
        path = issued.copy_to(self.folder / f"shaky-{self._changes}.pem")
        self._alter({"listener.name.shaky.ssl.keystore.location": str(path)})
        wanted = ssl.PEM_cert_to_DER_cert(issued.pem.decode())

        def shown() -> bytes:
            pem = ssl.get_server_certificate(self.place("SHAKY"), timeout=5)
            return ssl.PEM_cert_to_DER_cert(pem)

        until(lambda: shown() == wanted, "the new certificate", 10)

    @contextmanager
    def acls(self, *acls: ACL) -> Iterator[None]:
        """These entries in the access lists, for the time of a `with`."""
        admin = self.admin()
        told = admin.create_acls(list(acls))
        assert not told["failed"], told
        until(lambda: self._lists(*acls), "the entries are there")
        try:
            yield
        finally:
            self.forget(*acls)

    def forget(self, *acls: ACL) -> None:
        """Take entries out of the access lists; those that are not there any more, too."""
        admin = self.admin()
        admin.delete_acls(list(acls))
        until(lambda: not any(map(self._lists, acls)), "the entries are gone")

    def admin(self) -> KafkaAdminClient:
        """An administrator's client, the same one each time."""
        from kafka.admin import KafkaAdminClient

        if self._admin is None:
            self._admin = KafkaAdminClient(bootstrap_servers=self.bootstrap("ADMIN"))
        return self._admin

    # --- inside ---

    def _lists(self, *acls: ACL) -> bool:
        admin = self.admin()
        return all(admin.describe_acls(acl)[0] for acl in acls)

    def _alter(self, configs: Mapping[str, str]) -> None:
        from kafka.admin import ConfigResource, ConfigResourceType

        admin = self.admin()
        resource = ConfigResource(ConfigResourceType.BROKER, "1", dict(configs))
        admin.alter_configs([resource], raise_on_unknown=False)

    def _properties(self, node_id: int) -> str:
        ports = self._ports[node_id]
        listeners = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
        advertised = [f"{name}://{HOST}:{port}" for name, port in ports.items()]
        if node_id == 1:
            listeners.append(f"CONTROLLER://127.0.0.1:{self._controller_port}")
        text = _PROPERTIES.format(
            roles="broker,controller" if node_id == 1 else "broker",
            node_id=node_id,
            controller_port=self._controller_port,
            listeners=",".join(listeners),
            advertised=",".join(advertised),
            protocols=",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
            folder=self.nodes[node_id].folder,
            truststore=self.authority.file,
            keystore=self.good.file,
            shaky=self.good.file,
        )
        for name, protocol in LISTENERS.items():
            if protocol.startswith("SASL"):
                text += _SASL.format(
                    name=name.lower(),
                    mechanisms="PLAIN" if name == "LOGIN_PLAIN_ONLY" else ",".join(MECHANISMS),
                    plain=_plain(USER, *LATE_USERS.get(name, ())),
                    reauth_ms=REAUTH_MS if name in LATE_USERS else 0,
                )
        return text

    def _format(self, node: Node) -> subprocess.Popen[bytes]:
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(node.properties)]
        return subprocess.Popen(
            ["java", *JVM, "-cp", f"{LIBRARIES}/*", "kafka.tools.StorageTool", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def _start(self, node: Node) -> None:
        main = ["-cp", f"{LIBRARIES}/*", "kafka.Kafka", str(node.properties)]
        with node.log.open("ab") as log:
            node.process = subprocess.Popen(
                [*bound_to_this_process(), "java", *JVM, *main],
                cwd=node.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _ready(self, node: Node) -> bool:
        assert node.running, f"node {node.node_id} ended\n{node.tail()}"
        with MetadataConnection("127.0.0.1", node.port) as admin:
            admin.topics(None)
            return len(admin.nodes) == len(self.nodes)


def _plain(*users: str) -> str:
    entries = "".join(f' user_{user}="{PASSWORD}"' for user in users)
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required{entries};"
