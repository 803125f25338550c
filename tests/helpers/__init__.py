"""What several tests need: drivers as processes, sweeps in this process, tasks that misbehave."""
