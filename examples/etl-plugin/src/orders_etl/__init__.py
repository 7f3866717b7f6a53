"""Orders in, turnover by month and customer out: a pipeline for Haulage."""
