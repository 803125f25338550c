"""Search spaces: what they may say, in text and in plain values, and how a trial gets its parameters from one."""
