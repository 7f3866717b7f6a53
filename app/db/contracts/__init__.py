"""Parts of the contract of `DBInterface`, one per area."""
