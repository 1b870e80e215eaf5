"""Only what the ranks are connected by is a transport; what NCCL merely found is not."""

from __future__ import annotations

import pytest

from seatrial.parse.nccl_log import transport_of

PREFIX = "node-07:4000:4100 [0] NCCL INFO "


def log(*lines: str) -> str:
    return "".join(f"{PREFIX}{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "P2P"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P"),
        ("Channel 03 : 0[1b000] -> 1[1c000] via P2P/direct pointer", "P2P"),
        ("Channel 00 : 3[2000] -> 0[1000] via SHM/direct/direct", "SHM"),
        ("Ring 00 : 0[1b000] -> 7[41000] via direct shared memory", "SHM"),
        ("Ring 00 : 7 -> 8 [send] via NET/AWS Libfabric/0", "NET/OFI"),
        ("Channel 00/0 : 3[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA/Shared", "NET/OFI"),
        ("Channel 01/0 : 8[0] -> 0[0] [receive] via NET/IB/3/GDRDMA", "NET/IB"),
        ("Channel 03/0 : 7[3] -> 3[3] [receive] via NET/IBext_v8/3/GDRDMA", "NET/IB"),
        ("Channel 00/0 : 2[0] -> 3[0] [receive] via NET/Socket/0", "NET/Socket"),
        ("Channel 00/0 : 2[0] -> 3[0] [receive] via NET/Socket", "NET/Socket"),
        ("Channel 00/0 : 2[0] -> 3[0] [send] via NET/gIB/2 comm 0x9b nRanks 32", "NET/gIB"),
        ("CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA", "COLLNET"),
        ("Connected NVLS tree", "NVLS"),
        ("NVLS comm 0x5598478b07c0 headRank 1 nHeads 8 buffSize 4194304", "NVLS"),
        ("16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels", "NVLS"),
    ],
)
def test_a_connection_names_its_transport(said: str, kind: str) -> None:
    found = transport_of(log(said))
    assert found.kinds == {kind}
    assert found.lines == (PREFIX + said,)


@pytest.mark.parametrize(
    "said",
    [
        "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.7<0>",
        "NET/Socket : Using [0]eth0:10.0.0.7<0>",
        "NET/OFI Selected Provider is efa (found 16 nics)",
        "Using network Socket",
        "NVLS multicast support is available on dev 0",
        "16 coll channels, 0 collnet channels, 0 nvls channels, 16 p2p channels",
        "NVLS Head  0:  0  8",
        "Channel 00/08 :    0   1   2   3   4   5   6   7",
        "NCCL_NVLS_ENABLE set by environment to 1.",
        "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
    ],
)
def test_what_was_only_found_is_no_transport(said: str) -> None:
    assert transport_of(log(said)).kinds == frozenset()


def test_all_transports_of_a_log_are_told_each_with_its_first_line() -> None:
    text = log(
        "NET/IB : Using [0]mlx5_0:1/IB",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0",
        "Connected NVLS tree",
    )
    found = transport_of("training starts\n" + text + "Channel 5 of the camera via SHM\n")
    assert found.kinds == {"P2P", "NET/IB", "NVLS"}
    assert [line.removeprefix(PREFIX)[:10] for line in found.lines] == ["Channel 00", "Channel 00", "Connected "]


def test_the_version_is_read() -> None:
    assert transport_of("node:1:1 [0] NCCL INFO NCCL version 2.28.7+cuda13.0\n").version == "2.28.7+cuda13.0"
    assert transport_of("NCCL version 2.4.7+cuda10.0\n").version == "2.4.7+cuda10.0"
    assert transport_of(log("Init COMPLETE")).version is None


CHOSEN = "Using network IBext_v8"
NODES = "comm 0x8ec0ac0 rank 6 nRanks 16 nNodes 2 localRanks 8 localRank 6 MNNVL 0"


def test_without_channels_the_chosen_network_connects_the_nodes() -> None:
    found = transport_of(log(CHOSEN, NODES, "Connected NVLS tree"))
    assert found.kinds == {"NET/IB", "NVLS"}
    assert PREFIX + CHOSEN in found.lines


@pytest.mark.parametrize(
    "lines",
    [
        (CHOSEN,),
        (CHOSEN, NODES.replace("nNodes 2", "nNodes 1")),
        (CHOSEN, NODES.replace("MNNVL 0", "MNNVL 1")),
    ],
    ids=["nodes unknown", "one node", "nodes joined by NVLink"],
)
def test_a_network_that_no_node_needs_is_no_transport(lines: tuple[str, ...]) -> None:
    assert transport_of(log(*lines)).kinds == frozenset()


def test_channels_tell_more_than_the_choice() -> None:
    channel = "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Socket/0"
    assert transport_of(log(CHOSEN, NODES, channel)).kinds == {"NET/Socket"}


def test_an_empty_log_tells_nothing() -> None:
    found = transport_of("")
    assert (found.kinds, found.lines, found.version) == (frozenset(), (), None)
