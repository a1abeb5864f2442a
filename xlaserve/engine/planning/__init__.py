"""What a deployment would take and give on hardware that need not be here, from a model's configuration alone."""
