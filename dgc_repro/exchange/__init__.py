"""How workers talk: payloads, requests, the lockstep driver, wires, bytes and time."""
