"""What Dynamo traces otherwise than Python runs it: each fault is found, and repaired or made a graph break."""
