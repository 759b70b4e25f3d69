"""Print the tables of docs/scaling.md: what BERT-base and a 1B decoder cost on 8 to 1,024 devices.

python docs/scaling_model.py
"""

from __future__ import annotations

from headstart.evaluation.cluster import Cluster, Network, step

NETWORKS = {
    # 12 layers of 12 × 768²; the head on 15 % of tokens, its matrix tied to the embeddings (Devlin et al. 2019).
    "BERT-base, rows of 512, 2.1 M tokens an update": (
        Network(12, 12 * 768**2, 30522 * 768 + 514 * 768 + 768**2, 768, 512, 30522 * 768 + 768**2, predicted=0.15),
        4096 * 512,
    ),
    # TinyLlama's shape (Zhang et al. 2024): 22 layers, 2,048 wide, 5,632 in the feed-forward, 4 of 32 heads for keys.
    "decoder of 1.1 B, rows of 2,048, 4.2 M tokens an update": (
        Network(
            22, 2 * 2048**2 + 2 * 2048 * 256 + 3 * 2048 * 5632, 2 * 32000 * 2048, 2048, 2048, 32000 * 2048, attended=0.5
        ),
        2048 * 2048,
    ),
}  # fmt: skip
CLUSTER = Cluster(
    peak_flops=989e12, efficiency=0.4, devices_per_node=8, node_bytes_per_second=0.8 * 450e9,
    network_bytes_per_second=0.8 * 50e9, node_latency=1e-6, network_latency=10e-6, disk_bytes_per_second=2e9,
    hashed_bytes_per_second=1.5e9, memory=0.9 * 80e9,
)  # fmt: skip
DEVICES = (8, 64, 256, 1024)
TEXT_BYTES, BYTES_PER_TOKEN, STORED = 10e12, 4.4, 2
"""Text, its bytes per token under WordPiece of 16k, and the bytes of a stored token."""


def table(network: Network, tokens: int) -> str:
    """Return a row for each number of devices and way to spread the network."""
    head = (
        "| devices | | passes | compute, ms | network, ms | exposed, ms | sent by each, GB | state on each, GB | "
        "M tokens/s | reads, MB/s a node | checkpoint, s | days for 10 TB | most time goes to |"
    )
    lines = [head, "|---:|---" + "|---:" * 10 + "|---|"]
    for devices in DEVICES:
        for parallel in ("ddp", "fsdp"):
            cost = step(network, CLUSTER, parallel, devices, tokens)
            speed = tokens / cost.seconds
            nodes = max(1, devices // CLUSTER.devices_per_node)
            days = TEXT_BYTES / BYTES_PER_TOKEN / speed / 86400
            cells = [
                f"{devices:,}", parallel, str(cost.passes), f"{1e3 * cost.compute:,.1f}",
                f"{1e3 * cost.communication:,.1f}", f"{1e3 * cost.exposed:,.1f}", f"{cost.sent / 1e9:.2f}",
                f"{cost.state / 1e9:.2f}", f"{speed / 1e6:,.2f}", f"{speed * STORED / nodes / 1e6:.2f}",
                f"{cost.checkpoint:.2f}", f"{days:,.1f}", cost.bottleneck,
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tables() -> str:
    """Return both tables with what they are of."""
    parts = []
    for name, (network, tokens) in NETWORKS.items():
        millions, billions = network.parameters / 1e6, network.flops_per_token / 1e9
        parts += [f"**{name}**: {millions:,.1f} M parameters, {billions:.3g} GFLOPs a token", table(network, tokens)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(tables())
