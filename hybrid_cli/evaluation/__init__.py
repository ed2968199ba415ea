"""What a run is worth: measures, their significance, and how they are shown."""
