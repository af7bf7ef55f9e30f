"""Keys, leases, expiry and manifests of snapshots; how one is restored. Pure."""
