"""The paper PAPER: replace this line by its title and a link."""
