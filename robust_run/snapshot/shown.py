"""Snapshots in words, for people. Pure but for the local time zone."""

from __future__ import annotations

import time

from robust_run.snapshot.rules import key
from robust_run.snapshot.rules.types import Difference, Key, SnapshotManifest

_MIB = 1 << 20


def line(found: SnapshotManifest) -> str:
    """Return one line for a snapshot."""
    built = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.built_unix_s))
    sizes = f"{found.items} entries  {found.content_bytes / _MIB:.1f} MiB  image {found.image_bytes / _MIB:.1f} MiB"
    commands = "; ".join(" ".join(command.split()) for command in found.commands)
    return f"{found.key[:16]}  {built}  {sizes}  {commands[:100]}"


def described(found: SnapshotManifest) -> list[str]:
    """Return all there is to say of a snapshot."""
    platform = found.platform
    signed = "signed" if found.signature else "not signed"
    lines = [
        line(found),
        f"built by {found.builder or 'unknown'} in {found.took_s:.1f} s ({found.method}), {signed}",
        f"for {platform.system} {platform.machine}, {platform.libc}, {platform.soabi}",
        f"requirements {'all name one version' if found.pinned else 'may resolve to something newer'}",
        *(f"root {root.path}: {root.changed} added or changed, {root.removed} removed" for root in found.roots),
        *(f"outside: {path}" for path in found.outside),
        *(f"left out: {path}" for path in found.dropped),
        *key.explain(Key(digest=found.key, ingredients=found.ingredients)),
    ]
    for package in found.packages:
        source = f"  {'in place from ' if package.editable else 'from '}{package.source}" if package.source else ""
        lines.append(f"package {package.name} {package.version}{source}")
    return lines


def differences(one: SnapshotManifest, other: SnapshotManifest) -> list[Difference]:
    """Return the ingredients, and then the packages, in which two snapshots differ."""
    keys = [Key(digest=each.key, ingredients=each.ingredients) for each in (one, other)]
    here, there = ({package.name: package.version for package in each.packages} for each in (one, other))
    packages = [
        Difference(name=f"package {name}", here=here.get(name), there=there.get(name))
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name)
    ]
    return [*key.compare(*keys), *packages]
