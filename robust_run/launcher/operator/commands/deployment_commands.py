"""`robust ready | metrics-token`: what probes of containers and Prometheus need. Bodies import what they need."""

from __future__ import annotations

import os

import click


@click.command()
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code is the answer.")
def ready(quiet: bool) -> int:
    """Say whether a robust-run of this container has joined its job; exit code 1 if not. For readiness probes."""
    from robust_run.launcher.records.memory_folders import joined_here

    runs = joined_here()
    if not quiet:
        has = ", ".join(runs)
        click.echo(f"robust: joined {has}" if runs else "robust: no robust-run here has joined a job yet", err=not runs)
    return 0 if runs else 1


@click.command("metrics-token")
@click.option(
    "--token-file", default="", metavar="FILE", help="The secret (default $ROBUST_TOKEN, else your own file)."
)
def metrics_token(token_file: str) -> None:
    """Print the token that reads /metrics of every job of your secret, and nothing else: for Prometheus."""
    from robust_run.launcher.records import token

    click.echo(token.metrics_token(token.find_secret(os.path.abspath(token_file) if token_file else "", os.environ)))
