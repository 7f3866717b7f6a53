"""Worker processes: one job each, from claim to settled end."""
