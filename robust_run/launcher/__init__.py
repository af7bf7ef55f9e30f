"""Starts a job's workers, watches them, and heals the job. The only package that starts or ends processes."""
