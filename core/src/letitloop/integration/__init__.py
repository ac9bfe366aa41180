"""What every adapter shares: a session to record in, a durable model call, a durable tool call with a policy, safe patching."""
