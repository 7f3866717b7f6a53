"""Result formats that pipelines write and that the API and the command line read."""
