"""PostgreSQL: the store itself and the embedded server for those who have none."""
