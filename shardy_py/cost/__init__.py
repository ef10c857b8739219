"""What a plan costs: links, compute, memory."""
