"""What is sent. One method a file; pure tensor mathematics; nothing here knows the network."""
