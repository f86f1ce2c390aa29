"""What is trained: one file per task, one interface for the loop."""
