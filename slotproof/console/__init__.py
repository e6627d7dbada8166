"""What all commands share: exit codes, the screen, files, times, and what is said where the tool itself fails."""
