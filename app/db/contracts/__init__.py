"""Parts of `DBInterface`, one module for each area."""
