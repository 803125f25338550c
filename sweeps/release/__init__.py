"""From a sweep's winner to a registered model: what is packed up, what is written down, where it is sent."""
